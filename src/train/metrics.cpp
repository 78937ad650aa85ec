// SPDX-License-Identifier: Apache-2.0
// Metrics as JSON. Every kind begins with "kind"; a field is null, never absent, when its value is unknown.
#include "train/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"

namespace ferry {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

/// Control characters are escaped and invalid UTF-8 is replaced, so a line is always one valid object.
std::string dump(const Json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

double perplexity(double loss) { return std::exp(loss); }

double bits_per_byte(double loss) { return loss / std::numbers::ln2; }

std::string describe(const EvalMetrics& m) {
  std::string text =
      fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}", m.step, m.val_loss, perplexity(m.val_loss));
  if (m.byte_vocabulary) text += fmt::format(", {:.3f} bits per byte", bits_per_byte(m.val_loss));
  return text;
}

std::string to_json_line(const RunMetrics& m) {
  return dump(Json{{"kind", "run"},
                   {"ferry_version", m.ferry_version},
                   {"backend", m.backend},
                   {"dtype", m.dtype},
                   {"parameters", m.parameters},
                   {"steps", m.steps},
                   {"batch_size", m.batch_size},
                   {"seq_len", m.seq_len},
                   {"train_tokens", m.train_tokens},
                   {"val_tokens", m.val_tokens},
                   {"expected_step_ms", or_null(m.expected_step_ms)}});
}

std::string to_json_line(const TrainMetrics& m) {
  return dump(Json{{"kind", "train"},
                   {"step", m.step},
                   {"epoch", m.epoch},
                   {"loss", m.loss},
                   {"grad_norm", m.stats.grad_norm},
                   {"clip_coefficient", m.stats.applied ? Json(m.stats.coefficient) : Json(nullptr)},
                   {"applied", m.stats.applied},
                   {"skipped_steps", m.skipped_steps},
                   {"lr", m.lr},
                   {"tokens", m.tokens},
                   {"tokens_per_s", or_null(m.tokens_per_s)},
                   {"step_ms", or_null(m.step_ms)},
                   {"compute_ms", m.stats.compute_ms},
                   {"adamw_ms", m.stats.adamw_ms},
                   {"launcher_wait_ms", m.stats.launcher_wait_ms},
                   {"wait_weights_ms", m.stats.wait_weights_ms},
                   {"wait_optimizer_ms", m.stats.wait_optimizer_ms},
                   {"wait_gradients_ms", m.stats.wait_gradients_ms},
                   {"wait_residuals_ms", m.stats.wait_residuals_ms},
                   {"wait_input_ms", m.stats.wait_input_ms},
                   {"h2d_bytes", m.stats.h2d_bytes},
                   {"d2h_bytes", m.stats.d2h_bytes},
                   {"device_bytes", m.device_bytes},
                   {"host_bytes", m.host_bytes},
                   {"elapsed_s", m.elapsed_s}});
}

std::string to_json_line(const EvalMetrics& m) {
  return dump(Json{{"kind", "eval"},
                   {"step", m.step},
                   {"val_loss", m.val_loss},
                   {"perplexity", perplexity(m.val_loss)},
                   {"bits_per_byte", m.byte_vocabulary ? Json(bits_per_byte(m.val_loss)) : Json(nullptr)},
                   {"val_tokens", m.val_tokens},
                   {"elapsed_s", m.elapsed_s}});
}

std::string to_json_line(const SaveMetrics& m) {
  return dump(Json{{"kind", "save"}, {"step", m.step}, {"path", m.path}, {"bytes", m.bytes}, {"seconds", m.seconds}});
}

std::string to_json_line(const EndMetrics& m) {
  return dump(Json{{"kind", "end"},
                   {"status", m.status},
                   {"step", m.step},
                   {"tokens", m.tokens},
                   {"skipped_steps", m.skipped_steps},
                   {"loss", or_null(m.loss)},
                   {"val_loss", or_null(m.val_loss)},
                   {"tokens_per_s", or_null(m.tokens_per_s)},
                   {"elapsed_s", m.elapsed_s}});
}

FileDigest copy_metrics(const std::filesystem::path& from, const std::filesystem::path& to,
                        std::string_view last_line) {
  const MappedFile source(from);
  const auto bytes = source.bytes();
  const auto end = std::ranges::find(bytes.rbegin(), bytes.rend(), std::byte{'\n'}).base();
  AtomicFile copy(to);
  copy.write({bytes.begin(), end});
  copy.write(std::as_bytes(std::span(last_line)));
  copy.commit();
  return copy.digest();
}

MetricsFile::MetricsFile(const std::filesystem::path& path, const std::filesystem::path& begun) : path_(path) {
  if (!begun.empty()) copy_metrics(begun, path, "");
  file_.open(path, begun.empty() ? std::ios::trunc : std::ios::app);
  FERRY_CHECK(file_.good(), kIo, "metrics file '{}' cannot be written: check the folder's permissions and free space",
              path_.string());
}

void MetricsFile::write_line(std::string_view line) {
  file_.write(line.data(), static_cast<std::streamsize>(line.size()));
  file_.flush();
  FERRY_CHECK(file_.good(), kIo, "writing the metrics file '{}' failed: is the disk full?", path_.string());
}

}  // namespace ferry
