// SPDX-License-Identifier: Apache-2.0
// `ferry bench ops`: shapes of fixed models, or of one layer of the line's.
#include <algorithm>
#include <vector>

#include "backend/op_bench.h"
#include "cli/bench_targets.h"
#include "cli/run_setup.h"
#include "core/error.h"
#include "core/log.h"
#include "core/simd.h"
#include "core/thread_pool.h"

namespace ferry {
namespace {

/// Rows of the head that `bench ops` takes at a time; a plan's chunks are as large (op_bench_models).
constexpr std::int64_t kHeadRows = 21376;
/// Elements of a row that `bench ops` wants of ops on (N, C) alone, by more sequences, so that no cache holds them.
constexpr std::int64_t kWideRow = 8192;

/// One layer of the line's model.
OpBenchModel op_bench_model(const CommandLine& line, bool device) {
  const ModelConfig model = bench_model(line);
  OpBenchModel shapes;
  shapes.batch = line.config.batch_size;
  shapes.length = line.config.seq_len;
  shapes.width = model.hidden_size;
  shapes.ffn_width = model.intermediate_size;
  shapes.n_heads = model.n_heads;
  shapes.n_kv_heads = model.n_kv_heads;
  shapes.head_dim = model.head_dim;
  shapes.vocab_chunk = std::min(model.vocab_size, kHeadRows);
  const std::int64_t more = device ? std::max<std::int64_t>(1, kWideRow / model.hidden_size) : 1;
  shapes.narrow_batch = shapes.batch * more;
  shapes.dtypes = {line.config.dtype};
  return shapes;
}

/// The models of the backend unless the line or a file names one; `--dtype` leaves rows of one dtype.
std::vector<OpBenchModel> models_of(const CommandLine& line, bool device) {
  if (!line.runs_built_in()) return {op_bench_model(line, device)};
  std::vector<OpBenchModel> models = op_bench_models(device);
  if (!line.dtype_given) return models;
  for (OpBenchModel& model : models) std::erase_if(model.dtypes, [&](DType d) { return d != line.config.dtype; });
  return models;
}

/// The other of ferry's and cuDNN's attention than the line's; null where there is no GPU or no cuDNN.
std::unique_ptr<Backend> other_attention(const CommandLine& line, const Backend& backend) {
  if (backend.capabilities().name != "cuda") return nullptr;
  BackendOptions options = backend_options(line.config);
  const bool is_cudnn = options.attention == AttentionChoice::kCudnn;
  options.attention = is_cudnn ? AttentionChoice::kFerry : AttentionChoice::kCudnn;
  try {
    return create_backend("cuda", options);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::kConfig) throw;
    log::info("no rows of cuDNN's attention: {}", failure.what());
    return nullptr;
  }
}

}  // namespace

void bench_all_ops(const CommandLine& line) {
  const std::unique_ptr<Backend> backend = bench_backend(line);
  const std::unique_ptr<Backend> other = other_attention(line, *backend);
  OpBenchOptions options;
  options.device = backend->capabilities().is_device;
  options.threads = line.config.threads > 0 ? static_cast<int>(line.config.threads) : available_threads();
  options.level = simd_level();
  options.models = models_of(line, options.device);
  options.other_attention = other.get();
  options.other_attention_name = line.config.attention == RunConfig::Attention::kCudnn ? "ferry" : "cudnn";
  print_line(op_bench_header());
  const auto rows = bench_ops(*backend, options, [](const OpBenchRow& row) { print_line(to_line(row)); });
  for (const std::string& text : op_bench_summary(rows)) print_line(text);
}

}  // namespace ferry
