// SPDX-License-Identifier: Apache-2.0
// Words and tables of a plan.
#include "cli/plan_report.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/human_units.h"
#include "model/llama.h"
#include "offload/step_traffic.h"

namespace ferry {
namespace {

/// One line per purpose, however many buffers serve it; the largest first, their sum last.
std::vector<std::string> memory_column(const std::vector<MemoryLine>& buffers) {
  std::vector<MemoryLine> lines;
  std::size_t total = 0;
  for (const MemoryLine& buffer : buffers) {
    total += buffer.size_bytes;
    const auto same = std::ranges::find(lines, buffer.purpose, &MemoryLine::purpose);
    if (same == lines.end()) {
      lines.push_back(buffer);
    } else {
      same->size_bytes += buffer.size_bytes;
    }
  }
  std::ranges::stable_sort(lines, std::ranges::greater{}, &MemoryLine::size_bytes);
  lines.push_back({"in all", total});
  std::vector<std::string> column;
  for (const MemoryLine& line : lines) {
    column.push_back(fmt::format("{:>9}  {}", human_bytes(line.size_bytes), line.purpose));
  }
  return column;
}

std::string homes_of(Offload offload) {
  switch (offload) {
    case Offload::kAll:
      return "all: weights, gradients and optimizer state live in host memory; layers travel one by one";
    case Offload::kLayers:
      return "layers: they live in host memory and travel one by one; embedding, head and final norm stay on the "
             "device";
    case Offload::kNone: return "none: weights, gradients, optimizer state stay on the device";
  }
  return "";
}

/// "layer 4", "layers 0-3"
std::string layers(std::int64_t first, std::int64_t count) {
  return count == 1 ? fmt::format("layer {}", first) : fmt::format("layers {}-{}", first, first + count - 1);
}

std::string kept_of(const EngineOptions& options, std::int64_t n_layers) {
  const std::int64_t kept = options.recompute == Recompute::kNone ? n_layers : options.keep_layers;
  if (kept == 0) return options.recompute == Recompute::kFull ? "whole layers are computed again" : "none are kept";
  return fmt::format("those of {} are kept", kept == n_layers ? "all layers" : layers(n_layers - kept, kept));
}

/// Three digits, or all before the point.
std::string short_number(double value) {
  return value < 100 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}
std::string in_gb(double bytes) { return short_number(bytes / 1e9) + " GB"; }

/// Of the two that host memory may take, the longer one.
std::string host_work(const StepForecast& step, const MachineRates& rates) {
  if (step.host_s > (step.adamw_bytes + step.copied_bytes) / rates.host_bytes_s) {
    return fmt::format("AdamW alone: {} at {}/s", in_gb(step.adamw_bytes), in_gb(rates.adamw_bytes_s));
  }
  return fmt::format("AdamW {} and copies {} at {}/s", in_gb(step.adamw_bytes), in_gb(step.copied_bytes),
                     in_gb(rates.host_bytes_s));
}

}  // namespace

std::string describe_model(const ModelConfig& model, std::int64_t n_parameters, DType dtype) {
  return fmt::format("{} parameters in {}: {} layers of width {}, {} heads ({} key/value), vocabulary {}{}",
                     grouped(n_parameters), to_string(dtype), model.n_layers, model.hidden_size, model.n_heads,
                     model.n_kv_heads, grouped(model.vocab_size), model.tie_word_embeddings ? ", tied" : "");
}

std::string describe_data(const std::vector<std::string>& paths, const SequenceSet& data) {
  std::string files = paths.front();
  if (paths.size() > 1) files += fmt::format(" and {} more", paths.size() - 1);
  return fmt::format("{}: {} tokens, {} sequences of {}", files, grouped(data.n_tokens()), grouped(data.n_sequences()),
                     data.seq_len());
}

std::string describe_attention(const EngineOptions& options, const ModelConfig& model, const ScratchSizes& backend) {
  return describe_attention(LlamaShape(model, options.batch_size, options.seq_len), options.dtype, backend);
}

std::string describe_offload(const EngineOptions& options, std::int64_t n_layers) {
  std::vector<std::string> facts = {homes_of(options.offload)};
  if (options.offload != Offload::kNone) {
    const std::int64_t state = std::min(options.resident_state_layers, n_layers);
    const std::int64_t weights = std::min(options.resident_layers, n_layers - state);
    if (state > 0) facts.push_back(fmt::format("on the device for good: {}", layers(0, state)));
    if (weights > 0) facts.push_back(fmt::format("weights with a place of their own: {}", layers(state, weights)));
    facts.push_back(fmt::format("{} weight and {} gradient slots", options.weight_slots, options.grad_slots));
  }
  facts.emplace_back(options.residuals == Residuals::kHost ? "residuals go to the host"
                                                           : "residuals stay on the device");
  facts.push_back("activations: " + kept_of(options, n_layers));
  if (options.mlp_cut.cuts()) {
    const char* unit = options.mlp_cut.by == MlpCut::By::kTokens ? "tokens" : "features";
    facts.push_back(fmt::format("the MLP runs in parts of {} {}", options.mlp_cut.size, unit));
  }
  if (options.head == HeadMode::kLogits) facts.emplace_back("all logits are kept");
  if (options.head == HeadMode::kTokens) {
    facts.push_back(fmt::format("logits are made for {} tokens at a time", options.head_tokens));
  }
  return fmt::format("{}", fmt::join(facts, "; "));
}

std::vector<std::string> memory_table(const std::vector<MemoryLine>& device, const std::vector<MemoryLine>& host) {
  std::vector<std::string> left = memory_column(device);
  std::vector<std::string> right = memory_column(host);
  left.insert(left.begin(), "   device");
  right.insert(right.begin(), "     host");
  std::size_t width = 30;
  for (const std::string& text : left) width = std::max(width, text.size() + 2);
  std::vector<std::string> table;
  for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    table.push_back(fmt::format("{:<{}}{}", i < left.size() ? left[i] : "", width, i < right.size() ? right[i] : ""));
    table.back().erase(table.back().find_last_not_of(' ') + 1);
  }
  return table;
}

std::string list_of(const std::vector<MemoryLine>& lines) {
  std::string text;
  for (const MemoryLine& line : lines) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", line.purpose, human_bytes(line.size_bytes));
  }
  return text;
}

std::optional<double> expected_step_ms(const TrainingPlan& plan, bool is_device) {
  if (plan.measured.empty() && !is_device) return std::nullopt;
  return plan.forecast.total_s * 1e3;
}

void add_expected(TextReport& text, const TrainingPlan& plan, bool is_device) {
  if (!expected_step_ms(plan, is_device)) return;
  const StepForecast& step = plan.forecast;
  const EngineOptions& options = plan.step->options;
  const auto tokens = static_cast<double>(options.max_sequences() * options.seq_len);
  const std::string clipped = step.clipped_s > 0 ? ", backward and then AdamW " + human_step_time(step.clipped_s) : "";
  text.add("expected",
           fmt::format("{} a step ({} tokens/s), bound by {}: device {}, host memory {} ({}), to the device {}, to the "
                       "host {}{}",
                       human_step_time(step.total_s), human_count(tokens / step.total_s), step.bound(),
                       human_step_time(step.device_s), human_step_time(step.host_s), host_work(step, plan.rates),
                       human_step_time(step.h2d_s), human_step_time(step.d2h_s), clipped));
  text.add("", plan.measured.empty() ? "by the rates of an H200 machine: `ferry bench machine --rates FILE` measures "
                                       "this one's"
                                     : "by the rates of " + plan.measured);
}

void add_traffic(TextReport& text, const StepPlan& plan) {
  const StepTraffic traffic = step_traffic(plan);
  const auto line = [](const char* way, std::vector<MemoryLine> lines) {
    std::ranges::stable_sort(lines, std::ranges::greater{}, &MemoryLine::size_bytes);
    return fmt::format("{} {}: {}", human_bytes(total_bytes(lines)), way, list_of(lines));
  };
  text.add("per step", line("to the device", traffic.h2d));
  text.add("", line("to the host", traffic.d2h));
  std::vector<std::string> adamw;
  if (traffic.adamw_host_bytes > 0) {
    adamw.push_back(fmt::format("{} of host memory", human_bytes(traffic.adamw_host_bytes)));
  }
  if (traffic.adamw_device_bytes > 0) {
    adamw.push_back(fmt::format("{} of device memory", human_bytes(traffic.adamw_device_bytes)));
  }
  if (!adamw.empty()) text.add("", fmt::format("AdamW reads and writes {}", fmt::join(adamw, ", ")));
}

}  // namespace ferry
