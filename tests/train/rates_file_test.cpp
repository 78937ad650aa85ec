// SPDX-License-Identifier: Apache-2.0
// A rates file is read as it was written, and nothing in one is believed.
#include "train/rates_file.h"

#include <string>

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

namespace ferry {
namespace {

RatesFile some_file() {
  return {.rates = {.products_flop_s = 701.25e12,
                    .attention_forward_flop_s = 410e12,
                    .attention_backward_flop_s = 1.0 / 3 * 1e15,
                    .device_bytes_s = 4e12,
                    .h2d_bytes_s = 55e9,
                    .h2d_both_bytes_s = 45e9,
                    .d2h_both_bytes_s = 44e9,
                    .adamw_bytes_s = 150e9,
                    .host_bytes_s = 170e9},
          .backend = "cuda",
          .description = "NVIDIA \"H200\"\nnot a line of its own",
          .date = "2026-11-30",
          .threads = 14};
}

/// The message of reading `text`, without the folder's name.
std::string refusal(const std::string& text) {
  const TempFolder folder;
  const auto path = folder.write("rates.json", text);
  std::string message = thrown([&path] { read_rates_file(path); });
  const std::size_t at = message.find(folder.path().string());
  if (at != std::string::npos) message.erase(at, folder.path().string().size() + 1);
  return message;
}

/// The file of some_file() with `part` replaced.
std::string with(const std::string& part, const std::string& other) {
  std::string text = to_json(some_file());
  const std::size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  return text.replace(at, part.size(), other);
}

constexpr const char* kAdvice = ": give a file that `ferry bench machine --rates` has written";

}  // namespace

TEST_CASE("rates are read as they were written, to the bit") {
  const TempFolder folder;
  CHECK(read_rates_file(folder.write("rates.json", to_json(some_file()))) == some_file());
  CHECK(read_rates_file(folder.write("rates.json", to_json(RatesFile{}))).rates == MachineRates{});
}

TEST_CASE("a rate that no machine has is refused") {
  const std::string expected = std::string(", expected a number from 1000 to 1e+18") + kAdvice;
  for (const char* value : {"0", "-5", "999.5", "1e19", "9223372036854775808000", "null", "true"}) {
    INFO(value);
    CHECK(refusal(with("55000000000.0", value)) == "io: rates.json: h2d_bytes_s is " + std::string(value) + expected);
  }
  CHECK(refusal(with("55000000000.0", "\"55e9\"")) == "io: rates.json: h2d_bytes_s is the string '55e9'" + expected);
  CHECK(refusal(with("55000000000.0", "1e999")).starts_with("io: rates.json: malformed JSON"));
}

TEST_CASE("a whole number is a rate too") { CHECK(refusal(with("55000000000.0", "50000000000")).empty()); }

TEST_CASE("keys are all there, once, and no others") {
  CHECK(refusal(with("\"date\"", "\"dates\"")) == std::string("io: rates.json: unknown key 'dates'") + kAdvice);
  CHECK(refusal(with(" \"host_bytes_s\": 170000000000.0", " \"threads\": 3"))
            .starts_with("io: rates.json: the key 'threads' occurs twice"));
  CHECK(refusal(with(" \"date\": \"2026-11-30\",\n", "")) == std::string("io: rates.json: no key 'date'") + kAdvice);
  CHECK(refusal(with(" \"h2d_bytes_s\": 55000000000.0,\n", "")) ==
        std::string("io: rates.json: no key 'h2d_bytes_s'") + kAdvice);
  CHECK(refusal("{}") == std::string("io: rates.json: no key 'format'") + kAdvice);
}

TEST_CASE("what is no rates file of this version is refused") {
  CHECK(refusal(with("\"ferry machine rates\"", "\"other\"")) ==
        std::string("io: rates.json: format is the string 'other', expected \"ferry machine rates\"") + kAdvice);
  CHECK(refusal(with("\"version\": 1", "\"version\": 2")) ==
        std::string("io: rates.json: version is 2, expected 1") + kAdvice);
  CHECK(refusal(with("\"threads\": 14", "\"threads\": 1.5")) ==
        std::string("io: rates.json: threads is 1.5, expected an integer from 1 to 4096") + kAdvice);
  CHECK(refusal(with("\"cuda\"", "7")) == std::string("io: rates.json: backend is 7, expected a text") + kAdvice);
  CHECK(refusal(with("\"cuda\"", "[\"cuda\"]")).starts_with("io: rates.json: nested deeper than 1 levels"));
  CHECK(refusal("[]").starts_with("io: rates.json: an array, expected an object: give"));
  CHECK(refusal("").starts_with("io: rates.json: malformed JSON"));
  CHECK(refusal("{\"format\": ").starts_with("io: rates.json: malformed JSON"));
  CHECK(refusal(std::string(70'000, ' ')) == "io: rates.json: 70000 bytes, the limit is 65536");
  CHECK(thrown([] { read_rates_file("absent/rates.json"); }).starts_with("io: "));
}

TEST_CASE("a date has ten characters") { CHECK(today().size() == 10); }

}  // namespace ferry
