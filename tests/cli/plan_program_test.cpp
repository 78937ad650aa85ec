// SPDX-License-Identifier: Apache-2.0
// `ferry plan` and `ferry bench` end to end: what they tell, and the rates that one writes and the other goes by.
#include <signal.h>

#include <string>
#include <vector>

#include "catch.h"
#include "cli/run_ferry.h"
#include "cli/workplace.h"
#include "train/rates_file.h"

using namespace ferry::test;

namespace {

/// The lines of a report that hold the memory table.
std::string memory_lines(const std::string& out) {
  const std::size_t begin = out.find("memory  ");
  return out.substr(begin, out.find("in all", out.find("in all", begin) + 1) - begin);
}

}  // namespace

TEST_CASE("plan prints the memory that train takes, and what a step moves") {
  const Workplace place;
  const Outcome plan = run_ferry(place, {"plan", "tiny.toml"});
  INFO(plan.out);
  CHECK(plan.exit_code == 0);
  CHECK(plan.err.empty());
  CHECK_FALSE(place.has("out"));
  const char* const attention = "attention forward and backward by the CPU backend's own kernels\n";
  for (const char* part : {"model.json: ", "step      4 x 16 tokens", attention, "2 weight and 2 gradient slots",
                           "to the device: ", "to the host: ", "AdamW reads and writes "}) {
    INFO(part);
    CHECK(contains(plan.out, part));
  }
  const Outcome train = run_ferry(place, {"train", "tiny.toml", "--steps", "1", "--sample-tokens", "0"});
  CHECK(memory_lines(train.out) == memory_lines(plan.out));
  CHECK(contains(train.out, attention));
}

TEST_CASE("plan tells the step time to expect on a device, or by measured rates") {
  const Workplace place;
  CHECK_FALSE(contains(run_ferry(place, {"plan", "tiny.toml"}).out, "expected "));
  const std::string device = run_ferry(place, {"plan", "tiny.toml", "--backend", "cuda"}).out;
  INFO(device);
  CHECK(contains(device, "expected  "));
  CHECK(contains(device, " ms a step ("));
  CHECK(contains(device, "by the rates of an H200 machine"));
  place.write("rates.json", ferry::to_json(ferry::RatesFile{.rates = {.products_flop_s = 1e6},
                                                            .backend = "cpu",
                                                            .description = "slow",
                                                            .date = "2026-11-30",
                                                            .threads = 1}));
  place.write("planned.toml", std::string(kConfig) + "[plan]\nrates = \"rates.json\"\n");
  const Outcome measured = run_ferry(place, {"plan", "planned.toml"});
  INFO(measured.out);
  CHECK(contains(measured.out, "bound by the device"));
  CHECK(contains(measured.out, "by the rates of rates.json: slow, 2026-11-30"));
  const std::string trained = run_ferry(place, {"train", "planned.toml", "--steps", "3", "--sample-tokens", "0"}).out;
  INFO(trained);
  CHECK(contains(trained, "by the rates of rates.json: slow, 2026-11-30"));
  CHECK(contains(trained, " ms a step; the plan expected "));
  CHECK(contains(read_file(place.path() / "out" / "metrics.jsonl"), "\"expected_step_ms\":4"));
  const std::string timed = run_ferry(place, {"bench", "step", "planned.toml", "--steps", "1"}).out;
  CHECK(contains(timed, "; the plan expected "));
  CHECK_FALSE(contains(run_ferry(place, {"bench", "step", "tiny.toml", "--steps", "1"}).out, "expected"));
  place.write("broken.json", "{\"format\": 1}");
  check_refused(place, {"plan", "planned.toml", "--rates", "broken.json"}, 3, "broken.json: format is 1, expected");
  check_refused(place, {"plan", "planned.toml", "--rates", "absent.json"}, 3, "absent.json");
}

TEST_CASE("the step time to expect names the work that it is made of") {
  const Workplace place;
  const auto expected = [&place](const ferry::MachineRates& rates, const std::vector<std::string>& flags) {
    place.write("rates.json", ferry::to_json({.rates = rates, .backend = "", .description = "", .date = ""}));
    std::vector<std::string> args = {"plan", "tiny.toml", "--rates", "rates.json"};
    args.insert(args.end(), flags.begin(), flags.end());
    return one_line(run_ferry(place, args).out);
  };
  const std::string together = expected({.host_bytes_s = 2e9}, {});
  INFO(together);
  CHECK(contains(together, " and copies "));
  CHECK(contains(together, " at 2 GB/s), to the device "));
  CHECK_FALSE(contains(together, "backward and then AdamW"));
  const std::string alone = expected({.adamw_bytes_s = 1e6, .host_bytes_s = 2e9}, {"--grad-clip", "1"});
  INFO(alone);
  CHECK(contains(alone, "(AdamW alone: "));
  CHECK(contains(alone, " at 0.001 GB/s), to the device "));
  CHECK(contains(alone, ", backward and then AdamW "));
  const std::string slow = expected({.adamw_bytes_s = 1e3, .host_bytes_s = 1e3}, {});
  INFO(slow);
  CHECK(contains(slow, " s a step ("));
}

TEST_CASE("plan needs no data and no GPU, and no machine that holds the model") {
  const ferry::TempFolder empty;
  for (const char* backend : {"cpu", "cuda"}) {
    const Outcome plan = run_ferry(empty, {"plan", "--model", "llama-3.1-8b", "--backend", backend});
    INFO(plan.err);
    CHECK(plan.exit_code == 0);
    CHECK(contains(plan.out, "scratch of ops"));
    CHECK(contains(plan.out, "8,030,261,248 parameters"));
    const bool on_gpu = std::string(backend) == "cuda";
    CHECK(contains(plan.out, on_gpu ? "by ferry's fused kernels, which take bf16 heads" : "by the CPU backend's"));
  }
}

TEST_CASE("plan without a GPU calls scratch an upper bound where cuDNN may serve, and nowhere else") {
  const ferry::TempFolder empty;
  const auto planned = [&empty](const char* attention) {
    return one_line(
        run_ferry(empty, {"plan", "--model", "llama-3.1-8b", "--backend", "cuda", "--attention", attention}).out);
  };
  const std::string fused = planned("auto");
  CHECK_FALSE(contains(fused, "upper bound"));
  if (!contains(fused, "no GPU here")) return;  // there is one, which knows
  CHECK(contains(planned("cudnn"), "scratch of ops is an upper bound, as only cuDNN knows its own"));
}

TEST_CASE("bench step and bench floor measure the model of a config file") {
  const Workplace place;
  const Outcome step = run_ferry(place, {"bench", "step", "tiny.toml", "--steps", "2", "--untimed-steps", "1"});
  INFO(step.err);
  REQUIRE(step.exit_code == 0);
  for (const char* part : {"backend   cpu: ", "model     model.json: ", "run       4 x 16 tokens, offload = \"all\"",
                           "step      median ", "2 steps after 1 untimed", "speed     ", "MFU       -: ", "compute   ",
                           "adamw     ", "waits     ", "to device ", "to host   ", "memory    "}) {
    INFO(part);
    CHECK(contains(step.out, part));
  }
  const Outcome floor = run_ferry(place, {"bench", "floor", "tiny.toml", "--floor-seconds", "0"});
  INFO(floor.err);
  REQUIRE(floor.exit_code == 0);
  for (const char* part : {"model     model.json: ", "run       4 x 16 tokens, recompute = ", "floor     median ",
                           "1 steps back to back", "tokens/s", "products  ", " matrix products and attentions of "}) {
    INFO(part);
    CHECK(contains(floor.out, part));
  }
  CHECK_FALSE(place.has("out"));
}

TEST_CASE("bench machine writes the rates that plan goes by") {
  const Workplace place;
  const std::vector<std::string> args = {
      "bench", "machine", "--backend", "cpu", "--threads", "2", "--machine-seconds", "0", "--adamw-params", "8388608"};
  std::vector<std::string> to_file = args;
  to_file.insert(to_file.end(), {"--rates", "rates.json"});
  const Outcome bench = run_ferry(place, to_file);
  INFO(bench.err);
  INFO(bench.out);
  REQUIRE(bench.exit_code == 0);
  for (const char* part : {"backend   cpu: ", " on 2 threads", "in pieces of 16.0 MiB ", "both copies beside ",
                           "  all together ", "products and attention ", "attention backward ",
                           "copies within the device ", "plan, train and bench step: rates.json\n"}) {
    INFO(part);
    CHECK(contains(bench.out, part));
  }
  const Outcome plan = run_ferry(place, {"plan", "tiny.toml", "--rates", "rates.json"});
  INFO(plan.out);
  CHECK(plan.exit_code == 0);
  CHECK(contains(plan.out, "expected  "));
  CHECK(contains(plan.out, "by the rates of rates.json: "));
  // Refused before anything is measured.
  check_refused(place, {"bench", "machine", "--rates", "absent/rates.json"}, 3, "absent");
  check_refused(place, {"bench", "machine", "--rates", place.path().string()}, 3, "it is a folder");
}

TEST_CASE("bench machine leaves no file when it is interrupted") {
  const Workplace place;
  std::filesystem::create_directory(place.path() / "rates");
  FerryProcess process(place, {"bench", "machine", "--backend", "cpu", "--threads", "1", "--machine-seconds", "1",
                               "--adamw-params", "8388608", "--rates", "rates/rates.json"});
  REQUIRE(process.wait_for("in pieces of"));
  process.send(SIGINT);
  CHECK(process.wait().exit_code == 128 + SIGINT);
  CHECK(std::filesystem::is_empty(place.path() / "rates"));
}

TEST_CASE("bench says what it cannot measure") {
  const Workplace place;
  place.write("none.toml", "[data]\nseq_len = 16\n");
  check_refused(place, {"bench", "step", "none.toml"}, 2, "ferry bench step: no model in 'none.toml'");
  check_refused(place, {"bench", "floor", "absent.toml"}, 3, "absent.toml");
  check_refused(place, {"bench", "step", "tiny.toml", "--seq-len", "64"}, 2, "its max_position_embeddings is 32");
  check_refused(place, {"bench", "stpe"}, 2, "did you mean 'step'?");
}
