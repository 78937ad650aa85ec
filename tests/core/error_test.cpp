// SPDX-License-Identifier: Apache-2.0
// Checks, assertions and what they throw.
#include "core/error.h"

#include "catch.h"
#include "thrown.h"

using namespace ferry;

TEST_CASE("a failed check carries its kind and its formatted message") {
  CHECK(thrown([] { FERRY_CHECK(1 > 2, kShape, "x has {} rows, expected {}", 1, 2); }) ==
        "shape: x has 1 rows, expected 2");
}

TEST_CASE("a check that holds throws nothing and evaluates its condition once") {
  int n_evaluated = 0;
  CHECK(thrown([&] { FERRY_CHECK(++n_evaluated == 1, kConfig, "unused"); }).empty());
  CHECK(n_evaluated == 1);
}

TEST_CASE("a failed assertion is a logic_error that names condition, file and line") {
  std::string message;
  try {
    FERRY_ASSERT(2 + 2 == 5);
  } catch (const std::logic_error& error) {
    message = error.what();
  }
  CHECK(message.find("2 + 2 == 5 is false at ") != std::string::npos);
  CHECK(message.find("error_test.cpp:") != std::string::npos);
}

TEST_CASE("every error kind has a name") {
  CHECK(std::string(to_string(ErrorKind::kConfig)) == "config");
  CHECK(std::string(to_string(ErrorKind::kShape)) == "shape");
  CHECK(std::string(to_string(ErrorKind::kDType)) == "dtype");
  CHECK(std::string(to_string(ErrorKind::kIo)) == "io");
  CHECK(std::string(to_string(ErrorKind::kMemory)) == "memory");
  CHECK(std::string(to_string(ErrorKind::kDevice)) == "device");
}
