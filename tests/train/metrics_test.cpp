// SPDX-License-Identifier: Apache-2.0
// Tests of train/metrics.h: what a reader of metrics.jsonl relies on.
#include "train/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

using namespace ferry;

namespace {

std::vector<std::string> keys(const std::string& line) {
  std::vector<std::string> names;
  const auto json = nlohmann::ordered_json::parse(line);
  for (const auto& item : json.items()) names.push_back(item.key());
  return names;
}

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("each kind has its documented fields, known or not") {
  CHECK(keys(to_json_line(RunMetrics{})) == std::vector<std::string>{"kind", "ferry_version", "backend", "dtype",
                                                                     "parameters", "steps", "batch_size", "seq_len",
                                                                     "train_tokens", "val_tokens", "expected_step_ms"});
  CHECK(keys(to_json_line(TrainMetrics{})) == std::vector<std::string>{"kind",
                                                                       "step",
                                                                       "epoch",
                                                                       "loss",
                                                                       "grad_norm",
                                                                       "clip_coefficient",
                                                                       "applied",
                                                                       "skipped_steps",
                                                                       "lr",
                                                                       "tokens",
                                                                       "tokens_per_s",
                                                                       "step_ms",
                                                                       "compute_ms",
                                                                       "adamw_ms",
                                                                       "launcher_wait_ms",
                                                                       "wait_weights_ms",
                                                                       "wait_optimizer_ms",
                                                                       "wait_gradients_ms",
                                                                       "wait_residuals_ms",
                                                                       "wait_input_ms",
                                                                       "h2d_bytes",
                                                                       "d2h_bytes",
                                                                       "device_bytes",
                                                                       "host_bytes",
                                                                       "elapsed_s"});
  CHECK(keys(to_json_line(EvalMetrics{})) ==
        std::vector<std::string>{"kind", "step", "val_loss", "perplexity", "bits_per_byte", "val_tokens", "elapsed_s"});
  CHECK(keys(to_json_line(EndMetrics{})) == std::vector<std::string>{"kind", "status", "step", "tokens",
                                                                     "skipped_steps", "loss", "val_loss",
                                                                     "tokens_per_s", "elapsed_s"});
}

TEST_CASE("docs/metrics.md names every field") {
  const std::string docs = read_all(std::string(FERRY_SOURCE_DIR) + "/docs/metrics.md");
  for (const std::string& line : {to_json_line(RunMetrics{}), to_json_line(TrainMetrics{}), to_json_line(EvalMetrics{}),
                                  to_json_line(EndMetrics{})}) {
    for (const std::string& key : keys(line)) {
      INFO(key);
      CHECK(docs.find("`" + key + "`") != std::string::npos);
    }
  }
}

TEST_CASE("strings are escaped, so that a line stays one valid object") {
  RunMetrics metrics;
  metrics.backend = "a \"quoted\" \\ name\nwith a line break and \xff broken UTF-8";
  const std::string line = to_json_line(metrics);
  CHECK(std::count(line.begin(), line.end(), '\n') == 1);
  CHECK(line.back() == '\n');
  CHECK(nlohmann::json::parse(line)["backend"] ==
        "a \"quoted\" \\ name\nwith a line break and \xef\xbf\xbd broken UTF-8");
}

TEST_CASE("unknown and non-finite numbers are null") {
  TrainMetrics metrics;
  metrics.loss = NAN;
  const auto json = nlohmann::json::parse(to_json_line(metrics));
  CHECK(json["loss"].is_null());
  CHECK(json["tokens_per_s"].is_null());
  metrics.tokens_per_s = 12.5;
  CHECK(nlohmann::json::parse(to_json_line(metrics))["tokens_per_s"] == 12.5);
}

TEST_CASE("what is not known of a step's gradients is null") {
  TrainMetrics metrics;
  metrics.stats.grad_norm = 2.5;
  metrics.stats.coefficient = 0.4;
  auto json = nlohmann::json::parse(to_json_line(metrics));
  CHECK(json["grad_norm"] == 2.5);
  CHECK(json["clip_coefficient"] == 0.4);
  CHECK(json["applied"] == true);
  metrics.stats = {.applied = false, .grad_norm = NAN};
  json = nlohmann::json::parse(to_json_line(metrics));
  CHECK(json["grad_norm"].is_null());
  CHECK(json["clip_coefficient"].is_null());
  CHECK(json["applied"] == false);
}

TEST_CASE("bits per byte are told for byte vocabularies only") {
  EvalMetrics metrics{.step = 7, .val_loss = std::log(4.0), .val_tokens = 10, .byte_vocabulary = true, .elapsed_s = 0};
  auto json = nlohmann::json::parse(to_json_line(metrics));
  CHECK(json["bits_per_byte"].get<double>() == Approx(2));
  CHECK(json["perplexity"].get<double>() == Approx(4));
  CHECK(describe(metrics) == "step 7: validation loss 1.3863, perplexity 4.00, 2.000 bits per byte");
  metrics.byte_vocabulary = false;
  json = nlohmann::json::parse(to_json_line(metrics));
  CHECK(json["bits_per_byte"].is_null());
}

TEST_CASE("a metrics file starts anew and is complete after every line") {
  const TempFolder folder;
  const auto path = folder.write("metrics.jsonl", "of an earlier run\n");
  MetricsFile file(path);
  file.write(EvalMetrics{});
  CHECK(read_all(path) == to_json_line(EvalMetrics{}));
  file.write(EndMetrics{});
  CHECK(read_all(path) == to_json_line(EvalMetrics{}) + to_json_line(EndMetrics{}));
}

TEST_CASE("a metrics file that cannot be opened is an io error naming it") {
  const TempFolder folder;
  const std::string message = thrown([&] { MetricsFile(folder.path() / "absent" / "metrics.jsonl"); });
  CHECK(message.starts_with("io: metrics file '"));
  CHECK(message.find("absent") != std::string::npos);
}

TEST_CASE("a full disk is an io error") {
  MetricsFile file("/dev/full");
  CHECK(thrown([&] { file.write(EndMetrics{}); }).find("is the disk full?") != std::string::npos);
}
