// SPDX-License-Identifier: Apache-2.0
// Tests of core/human_units.h.
#include "core/human_units.h"

#include <cmath>

#include "catch.h"

using namespace ferry;

TEST_CASE("counts keep three digits at every size") {
  CHECK(human_count(0) == "0");
  CHECK(human_count(873) == "873");
  CHECK(human_count(999.7) == "1.00k");
  CHECK(human_count(12345) == "12.3k");
  CHECK(human_count(999600) == "1.00M");
  CHECK(human_count(2.5e12) == "2.50T");
  CHECK(human_count(NAN) == "-");
  CHECK(human_count(-1) == "-");
}

TEST_CASE("sizes use binary units") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.0 KiB");
  CHECK(human_bytes(std::size_t{107} << 30) == "107 GiB");
  CHECK(human_bytes((std::size_t{1} << 20) - 1) == "1.0 MiB");
}

TEST_CASE("step times are in milliseconds, from 10 s on in seconds") {
  CHECK(human_step_time(1.234e-5) == "0.0123 ms");
  CHECK(human_step_time(0.0123) == "12.3 ms");
  CHECK(human_step_time(9.87) == "9870 ms");
  CHECK(human_step_time(10) == "10 s");
  CHECK(human_step_time(12.34) == "12.3 s");
  CHECK(human_step_time(665.676) == "666 s");
}

TEST_CASE("durations show the two largest units") {
  CHECK(human_duration(0) == "0s");
  CHECK(human_duration(59.6) == "1m00s");
  CHECK(human_duration(3599) == "59m59s");
  CHECK(human_duration(11100) == "3h05m");
  CHECK(human_duration(INFINITY) == "-");
}
