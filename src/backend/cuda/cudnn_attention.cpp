// SPDX-License-Identifier: Apache-2.0
// cuDNN's fused attention through cudnn-frontend's graphs: one graph per shape, run once per slice of the op.
// Compiled by g++ alone: the frontend's headers are too much for nvcc.
#include "backend/cuda/cudnn_attention.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace ferry::cuda {
namespace {

namespace graph = cudnn_frontend::graph;
using Tensor = std::shared_ptr<graph::Tensor_attributes>;
using Pointers = std::unordered_map<std::int64_t, void*>;

/// cuDNN reads and writes rows 16 bytes at a time.
constexpr std::uintptr_t kAlignBytes = 16;
constexpr std::int64_t kAlignElems = 8;

/// One launch covers this many sequences and key/value heads, with the query heads that read them.
struct Slice {
  std::int64_t batch;
  std::int64_t kv_heads;
};

/// A cuDNN graph for slices of an op; without a graph cuDNN does not take the op, and `refusal` says why.
struct Plan {
  Slice slice{};
  std::unique_ptr<graph::Graph> graph;
  std::size_t workspace_bytes = 0;
  std::string refusal;
};

using Key = std::vector<std::int64_t>;

/// Everything a graph depends on: the kind of op, shapes, strides, scale.
template <class Attention>
Key key_of(const Attention& op) {
  Key key = {std::is_same_v<Attention, AttentionBackward> ? 1 : 0, std::bit_cast<std::int32_t>(op.scale)};
  op.visit([&](Access, const char*, const TensorView& view) {
    key.insert(key.end(), view.shape.begin(), view.shape.begin() + view.rank);
    key.insert(key.end(), view.stride.begin(), view.stride.begin() + view.rank);
  });
  return key;
}

template <class Attention>
bool may_be_supported(const Attention& op) {
  bool aligned = true;
  op.visit([&](Access, const char*, const TensorView& view) {
    if (view.rank != 4) return;  // lse: read one number at a time
    aligned = aligned && reinterpret_cast<std::uintptr_t>(view.data) % kAlignBytes == 0;
    for (int i = 0; i < 3; ++i) aligned = aligned && view.stride[i] % kAlignElems == 0;
  });
  return aligned && op.q.dtype == DType::kBf16 && op.q.shape[1] == op.k.shape[1] && op.q.shape[3] % kAlignElems == 0;
}

std::int64_t heads_of(const TensorView& view) { return view.rank == 4 ? view.shape[2] : view.shape[1]; }

/// A slice of the view as cuDNN orders it: (batch, heads, positions, width).
graph::Tensor_attributes describe(const TensorView& view, const char* name, std::int64_t uid, std::int64_t batch,
                                  std::int64_t heads) {
  auto tensor = graph::Tensor_attributes().set_name(name).set_uid(uid);
  if (view.rank == 4) {
    tensor.set_data_type(cudnn_frontend::DataType_t::BFLOAT16)
        .set_dim({batch, heads, view.shape[1], view.shape[3]})
        .set_stride({view.stride[0], view.stride[2], view.stride[1], 1});
  } else {
    const std::int64_t length = view.shape[2];
    tensor.set_data_type(cudnn_frontend::DataType_t::FLOAT)
        .set_dim({batch, heads, length, 1})
        .set_stride({heads * length, length, 1, 1});
  }
  return tensor;
}

/// The op's tensors in the order of its visit(); a tensor's uid is its place in that order, from 1.
template <class Attention>
std::vector<graph::Tensor_attributes> describe_all(const Attention& op, Slice slice) {
  std::vector<graph::Tensor_attributes> tensors;
  const std::int64_t kv_heads = op.k.shape[2];
  op.visit([&](Access, const char* name, const TensorView& view) {
    const auto uid = static_cast<std::int64_t>(tensors.size()) + 1;
    tensors.push_back(describe(view, name, uid, slice.batch, heads_of(view) / kv_heads * slice.kv_heads));
  });
  return tensors;
}

void set_output(const Tensor& output, const graph::Tensor_attributes& wanted) {
  output->set_output(true)
      .set_uid(wanted.get_uid())
      .set_data_type(wanted.get_data_type())
      .set_dim(wanted.get_dim())
      .set_stride(wanted.get_stride());
}

void add_attention(graph::Graph& graph, const AttentionForward& op, Slice slice) {
  const auto tensors = describe_all(op, slice);
  auto options = graph::SDPA_attributes()
                     .set_name(AttentionForward::kName)
                     .set_generate_stats(true)
                     .set_attn_scale(op.scale)
                     .set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT)
                     .set_diagonal_band_right_bound(0);
  const auto outputs =
      graph.sdpa(graph.tensor(tensors[0]), graph.tensor(tensors[1]), graph.tensor(tensors[2]), std::move(options));
  set_output(outputs[0], tensors[3]);
  set_output(outputs[1], tensors[4]);
}

void add_attention(graph::Graph& graph, const AttentionBackward& op, Slice slice) {
  const auto tensors = describe_all(op, slice);
  auto options = graph::SDPA_backward_attributes()
                     .set_name(AttentionBackward::kName)
                     .set_attn_scale(op.scale)
                     .set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT)
                     .set_diagonal_band_right_bound(0)
                     .set_deterministic_algorithm(true);
  std::array<Tensor, 6> inputs;  // q, k, v, o, lse, d_o
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = graph.tensor(tensors[i]);
  const auto outputs =
      graph.sdpa_backward(inputs[0], inputs[1], inputs[2], inputs[3], inputs[5], inputs[4], std::move(options));
  for (std::size_t i = 0; i < outputs.size(); ++i) set_output(outputs[i], tensors[inputs.size() + i]);
}

template <class Attention>
Plan build_plan(cudnnHandle_t handle, const Attention& op, Slice slice) {
  Plan plan;
  plan.slice = slice;
  auto graph = std::make_unique<graph::Graph>();
  try {
    graph->set_io_data_type(cudnn_frontend::DataType_t::BFLOAT16)
        .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
        .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
    add_attention(*graph, op, slice);
    auto status = graph->build(handle, {cudnn_frontend::HeurMode_t::A});
    if (status.is_bad()) {
      plan.refusal = status.get_message();
      return plan;
    }
    plan.workspace_bytes = static_cast<std::size_t>(std::max<std::int64_t>(graph->get_workspace_size(), 0));
    plan.graph = std::move(graph);
  } catch (const std::exception& error) {
    plan.refusal = error.what();
  }
  return plan;
}

/// The largest divisor of n that is at most `limit` and below n; n > 1.
std::int64_t smaller_divisor(std::int64_t n, double limit) {
  std::int64_t divisor = n - 1;
  while (divisor > 1 && (n % divisor != 0 || static_cast<double>(divisor) > limit)) --divisor;
  return divisor;
}

/// Splits by sequence, then by key/value head, until the workspace fits: it is proportional to either number.
template <class Attention>
Plan plan_slices(cudnnHandle_t handle, const Attention& op, std::size_t max_workspace_bytes) {
  Slice slice = {op.q.shape[0], op.k.shape[2]};
  Plan plan = build_plan(handle, op, slice);
  while (plan.graph != nullptr && plan.workspace_bytes > max_workspace_bytes) {
    std::int64_t& count = slice.batch > 1 ? slice.batch : slice.kv_heads;
    if (count == 1) {
      plan.refusal = fmt::format("one key/value head needs {} bytes of workspace, the limit is {}",
                                 plan.workspace_bytes, max_workspace_bytes);
      plan.graph.reset();
      break;
    }
    const double fraction = static_cast<double>(max_workspace_bytes) / static_cast<double>(plan.workspace_bytes);
    count = smaller_divisor(count, static_cast<double>(count) * fraction);
    plan = build_plan(handle, op, slice);
  }
  return plan;
}

/// Where the slice that starts at a sequence and a key/value head begins in each tensor.
template <class Attention>
Pointers pointers_of(const Attention& op, std::int64_t batch, std::int64_t kv_head) {
  Pointers pointers;
  const std::int64_t kv_heads = op.k.shape[2];
  op.visit([&](Access, const char*, const TensorView& view) {
    const std::int64_t head = heads_of(view) / kv_heads * kv_head;
    const std::int64_t head_stride = view.rank == 4 ? view.stride[2] : view.stride[1];
    const std::int64_t offset = batch * view.stride[0] + head * head_stride;
    const auto uid = static_cast<std::int64_t>(pointers.size()) + 1;
    pointers[uid] = static_cast<std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  });
  return pointers;
}

std::string version_text(std::size_t version) {
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

struct CudnnAttention::State {
  std::size_t max_workspace_bytes;
  std::string version;
  std::string unavailable;
  std::mutex mutex;  // guards all below
  cudnnHandle_t handle = nullptr;
  std::map<Key, Plan> plans;

  /// Opens the library, or says in `unavailable` why it cannot be used.
  void open() {
    const std::size_t library = cudnnGetVersion();
    if (library / 10000 != CUDNN_VERSION / 10000) {
      unavailable = fmt::format("{} is loaded, ferry is built for {}: install cuDNN {} or rebuild ferry",
                                version_text(library), version_text(CUDNN_VERSION), CUDNN_VERSION / 10000);
      return;
    }
    const cudnnStatus_t status = cudnnCreate(&handle);
    if (status != CUDNN_STATUS_SUCCESS) {
      handle = nullptr;
      unavailable = fmt::format("{} does not start: {}: check that all libcudnn_*.so of one version can be found",
                                version_text(library), cudnnGetErrorString(status));
      return;
    }
    version = version_text(library);
    if (library < CUDNN_VERSION) {
      log::info("{} is older than {} that ferry is built for: shapes it refuses take the plain kernels", version,
                version_text(CUDNN_VERSION));
    }
  }

  template <class Attention>
  const Plan& plan_for(const Attention& op) {
    Key key = key_of(op);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
    Plan plan = plan_slices(handle, op, max_workspace_bytes);
    if (plan.graph == nullptr) {
      log::info("{} of q {}, k {}: {} refuses it, the plain kernel runs instead ({})", op.kName, op.q.describe(),
                op.k.describe(), version, plan.refusal);
    } else {
      log::debug("{} of q {}, k {}: {} sequences, {} key/value heads a launch, {} bytes of workspace", op.kName,
                 op.q.describe(), op.k.describe(), plan.slice.batch, plan.slice.kv_heads, plan.workspace_bytes);
    }
    return plans.emplace(std::move(key), std::move(plan)).first->second;
  }

  template <class Attention>
  bool supported(const Attention& op) {
    if (handle == nullptr || !may_be_supported(op)) return false;
    const std::lock_guard lock(mutex);
    return plan_for(op).graph != nullptr;
  }

  template <class Attention>
  std::size_t scratch_bytes(const Attention& op) {
    const std::lock_guard lock(mutex);
    return plan_for(op).workspace_bytes;
  }

  template <class Attention>
  void run(const Attention& op, Scratch scratch, cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    const Plan& plan = plan_for(op);
    FERRY_ASSERT(plan.graph != nullptr && scratch.size_bytes >= plan.workspace_bytes);
    const cudnnStatus_t status = cudnnSetStream(handle, stream);
    FERRY_CHECK(status == CUDNN_STATUS_SUCCESS, kDevice, "{}: cudnnSetStream: {}", op.kName,
                cudnnGetErrorString(status));
    for (std::int64_t batch = 0; batch < op.q.shape[0]; batch += plan.slice.batch) {
      for (std::int64_t kv_head = 0; kv_head < op.k.shape[2]; kv_head += plan.slice.kv_heads) {
        Pointers pointers = pointers_of(op, batch, kv_head);
        auto result = plan.graph->execute(handle, pointers, scratch.data);
        FERRY_CHECK(result.is_good(), kDevice, "{}: {}: {}: configure with -DFERRY_CUDNN=OFF to do without cuDNN",
                    op.kName, version, result.get_message());
      }
    }
  }
};

CudnnAttention::CudnnAttention(std::size_t max_workspace_bytes) : state_(std::make_unique<State>()) {
  state_->max_workspace_bytes = max_workspace_bytes;
  state_->open();
}

CudnnAttention::~CudnnAttention() {
  state_->plans.clear();
  if (state_->handle != nullptr) cudnnDestroy(state_->handle);
}

const std::string& CudnnAttention::version() const { return state_->version; }
const std::string& CudnnAttention::unavailable() const { return state_->unavailable; }

bool CudnnAttention::supported(const AttentionForward& op) { return state_->supported(op); }
bool CudnnAttention::supported(const AttentionBackward& op) { return state_->supported(op); }

std::size_t CudnnAttention::scratch_bytes(const AttentionForward& op) { return state_->scratch_bytes(op); }
std::size_t CudnnAttention::scratch_bytes(const AttentionBackward& op) { return state_->scratch_bytes(op); }

void CudnnAttention::forward(const AttentionForward& op, Scratch scratch, cudaStream_t stream) {
  state_->run(op, scratch, stream);
}

void CudnnAttention::backward(const AttentionBackward& op, Scratch scratch, cudaStream_t stream) {
  state_->run(op, scratch, stream);
}

}  // namespace ferry::cuda
