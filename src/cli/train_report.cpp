// SPDX-License-Identifier: Apache-2.0
// Aligned text for people: a label of ten columns, then the facts.
#include "cli/train_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data/token_shard.h"
#include "train/human_units.h"
#include "train/sampler.h"

namespace ferry {
namespace {

constexpr std::size_t kLabelColumns = 10;
constexpr std::size_t kTextColumns = 79;

/// Lines of a text: a label first, prose broken at spaces to the width of a usual terminal.
class Report {
 public:
  void add(std::string_view label, std::string_view text) {
    constexpr std::size_t kWidth = kTextColumns - kLabelColumns;
    while (text.size() > kWidth) {
      const std::size_t space = std::min(text.rfind(' ', kWidth), text.find(' ', kWidth));
      if (space == std::string_view::npos || space == 0) break;
      add_line(label, text.substr(0, space));
      text.remove_prefix(space + 1);
      label = "";
    }
    add_line(label, text);
  }

  void add_line(std::string_view label, std::string_view text) {
    lines_.push_back(fmt::format("{:<{}}{}", label, kLabelColumns, text));
  }

  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

/// 1234567 -> "1,234,567"
std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string describe_data(const std::vector<std::string>& paths, const SequenceSet& data) {
  std::string files = paths.front();
  if (paths.size() > 1) files += fmt::format(" and {} more", paths.size() - 1);
  return fmt::format("{}: {} tokens, {} sequences of {}", files, grouped(data.n_tokens()), grouped(data.n_sequences()),
                     data.seq_len());
}

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

std::string describe_schedule(const RunConfig& config) {
  static constexpr std::array<const char*, 4> kNames{"constant", "linear", "cosine", "wsd"};
  return fmt::format("lr {:g} {}", config.lr, kNames[static_cast<std::size_t>(config.schedule)]);
}

std::string describe_run(const StartReport& report) {
  const RunConfig& config = report.line.config;
  const double n_tokens = static_cast<double>(report.steps) * static_cast<double>(config.sequences() * config.seq_len);
  const double epochs = static_cast<double>(report.steps) * static_cast<double>(config.sequences()) /
                        static_cast<double>(report.train_data.n_sequences());
  return fmt::format("{} steps of {} x {} tokens ({} tokens, {:.2f} epochs), {}, into {}", grouped(report.steps),
                     config.sequences(), config.seq_len, human_count(n_tokens), epochs, describe_schedule(config),
                     config.output);
}

std::string describe_offload(const RunConfig& config) {
  if (config.offload == RunConfig::Offload::kNone)
    return "none: weights, gradients, optimizer state stay on the device";
  return "all: weights, gradients and optimizer state live in host memory; layers travel one by one";
}

}  // namespace

std::string describe_model(const ModelConfig& model, std::int64_t n_parameters, DType dtype) {
  return fmt::format("{} parameters in {}: {} layers of width {}, {} heads ({} key/value), vocabulary {}{}",
                     grouped(n_parameters), to_string(dtype), model.n_layers, model.hidden_size, model.n_heads,
                     model.n_kv_heads, grouped(model.vocab_size), model.tie_word_embeddings ? ", tied" : "");
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

std::vector<std::string> describe_start(const StartReport& report) {
  const RunConfig& config = report.line.config;
  Report text;
  text.add("config", report.line.config_source.empty() ? "flags alone" : report.line.config_source);
  const std::string name = config.model.empty() ? config.init_from : config.model;
  const std::int64_t n_parameters = report.engine.parameters().n_parameters();
  text.add("model", name + ": " + describe_model(report.model, n_parameters, config.dtype));
  if (!config.init_from.empty()) text.add("weights", "from " + config.init_from);
  text.add("data", describe_data(config.train_data, report.train_data));
  if (report.val_data != nullptr) text.add("", "validation " + describe_data(config.val_data, *report.val_data));
  text.add("backend", report.backend.name + ": " + report.backend.description);
  text.add("offload", describe_offload(config));
  const std::vector<std::string> table = memory_table(report.engine.device_memory(), report.engine.host_memory());
  for (std::size_t i = 0; i < table.size(); ++i) text.add_line(i == 0 ? "memory" : "", table[i]);
  text.add("run", describe_run(report));
  return std::move(text).lines();
}

std::vector<std::string> describe_end(const TrainResult& result, const RunFolder& folder, bool byte_vocabulary) {
  Report text;
  const std::string speed = result.tokens_per_s ? fmt::format(": {} tokens/s", human_count(*result.tokens_per_s)) : "";
  text.add("trained",
           fmt::format("{} steps, {} tokens in {}{}", grouped(result.steps),
                       human_count(static_cast<double>(result.tokens)), human_duration(result.elapsed_s), speed));
  if (result.steps > 0) {
    text.add("loss", fmt::format("training {:.4f} (mean of the last {} steps)", result.loss,
                                 std::min<std::int64_t>(result.steps, LossHistory::kTail)));
  }
  if (result.last_eval) text.add("", describe(*result.last_eval));
  text.add_line("weights", folder.model().string() + ", a Hugging Face folder");
  text.add_line("metrics", folder.metrics().string());
  text.add_line("curve", folder.plot().string());
  if (byte_vocabulary) text.add_line("try", fmt::format("ferry generate {}", folder.path().string()));
  return std::move(text).lines();
}

std::set<std::string> words_of(const std::vector<TokenSource>& sources) {
  constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
  std::set<std::string> words;
  std::int64_t budget = kMaxWordBytes;
  std::vector<std::uint32_t> ids;
  std::string text;
  for (const TokenSource& source : sources) {
    const TokenShard shard(source);
    for (std::int64_t first = 0; first < shard.size() && budget > 0; first += kPieceBytes) {
      ids.resize(static_cast<std::size_t>(std::min(kPieceBytes, shard.size() - first)));
      shard.read(first, ids);
      budget -= std::ssize(ids);
      for (const std::uint32_t id : ids) text.push_back(static_cast<char>(id));
      // The last word may go on in the next piece.
      const std::size_t end = text.find_last_of(" \n") == std::string::npos ? 0 : text.find_last_of(" \n");
      for (std::string& word : split_words(std::string_view(text).substr(0, end))) words.insert(std::move(word));
      text.erase(0, end);
    }
    for (std::string& word : split_words(text)) words.insert(std::move(word));
    text.clear();
  }
  return words;
}

}  // namespace ferry
