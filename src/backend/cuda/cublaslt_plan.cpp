// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's objects for row-major products, and the search for more algorithms than the few it proposes.
#include "backend/cuda/cublaslt_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "backend/cuda/cublaslt_algo.h"
#include "core/error.h"

namespace ferry::cuda {
namespace {

// No kernel loads more at once; a larger alignment would make the choice depend on where the arena put a tensor.
constexpr std::uintptr_t kMaxAlignment = 16;

/// A single row has no stride that matters.
std::int64_t row_stride_of(const TensorView& view) { return view.shape[0] == 1 ? view.shape[1] : view.stride[0]; }

int alignment_of(const void* data) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(data) | kMaxAlignment;
  return 1 << std::countr_zero(bits);
}

template <class Value>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, Value value) {
  FERRY_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
}

template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  FERRY_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

// What is varied, in this order: tile and cluster decide most of the speed.
constexpr Attribute kVaried[] = {kTile,
                                 kCluster,
                                 CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
                                 CUBLASLT_ALGO_CONFIG_STAGES_ID,
                                 CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                 CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                                 CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID};
constexpr std::uint32_t kClusters[] = {CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1,
                                       CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x2x1,
                                       CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_CLUSTER_SHAPE_1x4x1,
                                       CUBLASLT_CLUSTER_SHAPE_4x2x1, CUBLASLT_CLUSTER_SHAPE_2x4x1};
constexpr std::uint32_t kMaxCustom = 31;
// So many proposals are varied: each has a few hundred tiles to check.
constexpr std::size_t kVariedProposals = 4;
// A check takes microseconds, and a model has a few dozen products.
constexpr int kMaxChecks = 4096;

}  // namespace

void throw_cublas_error(cublasStatus_t status, const char* call) {
  const std::string_view text(call);
  const std::string name(text.substr(0, text.find('(')));
  if (const cudaError_t pending = cudaGetLastError(); pending != cudaSuccess) throw_cuda_error(pending, name.c_str());
  const bool is_memory = status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED;
  ferry::detail::throw_error(
      ErrorKind::kDevice,
      fmt::format("{}: {}: {}", name, cublasLtGetStatusName(status),
                  is_memory ? "the GPU's memory may be full: end other programs that use it (nvidia-smi lists them)"
                            : "set FERRY_SYNC_LAUNCHES=1 to learn which op fails; CUBLASLT_LOG_LEVEL=2 makes the "
                              "library say more"));
}

Product::Product(const Matmul& op)
    : m(op.d.shape[0]),
      n(op.d.shape[1]),
      k(op.a.shape[op.transpose_a ? 0 : 1]),
      in(op.a.dtype),
      out(op.d.dtype),
      transpose_a(op.transpose_a),
      transpose_b(op.transpose_b) {
  if (op.c) addend = op.c.data == op.d.data ? Addend::kInPlace : Addend::kSeparate;
  const TensorView* const views[] = {&op.a, &op.b, op.c ? &op.c : &op.d, &op.d};
  for (std::size_t i = 0; i < std::size(views); ++i) {
    row_stride[i] = row_stride_of(*views[i]);
    alignment[i] = alignment_of(views[i]->data);
  }
}

std::string Product::describe() const {
  return fmt::format("{} {} m{} n{} k{} {}{} ld{},{},{},{} {} align{},{},{},{}", to_string(in), to_string(out), m, n, k,
                     transpose_a ? 't' : 'n', transpose_b ? 't' : 'n', row_stride[0], row_stride[1], row_stride[2],
                     row_stride[3],
                     addend == Addend::kNone       ? "="
                     : addend == Addend::kSeparate ? "+"
                                                   : "+=",
                     alignment[0], alignment[1], alignment[2], alignment[3]);
}

Operands::Operands(const Matmul& op) : a(op.a.data), b(op.b.data), c(op.c ? op.c.data : op.d.data), d(op.d.data) {}

ProductDescriptors::ProductDescriptors(const Product& product)
    : product_(product), beta_(product.addend == Addend::kNone ? 0.0F : 1.0F) {
  FERRY_CUBLAS_CHECK(cublasLtMatmulDescCreate(operation_.receive(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
  // The first operand of the transposed product is b.
  set(operation_.get(), CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation_.get(), CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  const auto create = [&product](Layout& layout, DType dtype, bool transposed, std::int64_t rows, std::int64_t columns,
                                 std::size_t operand) {
    if (transposed) std::swap(rows, columns);
    FERRY_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(layout.receive(), data_type(dtype),
                                                  static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                                                  product.row_stride[operand]));
  };
  create(a_, product.in, product.transpose_a, product.m, product.k, 0);
  create(b_, product.in, product.transpose_b, product.k, product.n, 1);
  create(c_, product.out, false, product.m, product.n, 2);
  create(d_, product.out, false, product.m, product.n, 3);
}

/// Collects algorithms of one product, each name once, in an order that depends on nothing but the product.
class CandidateSearch {
 public:
  CandidateSearch(const ProductDescriptors& product, cublasLtHandle_t handle, std::size_t workspace_bytes)
      : p_(product), handle_(handle), workspace_bytes_(workspace_bytes) {}

  /// The library's first list, then what it adds for less workspace and for the same algorithms alone.
  void add_proposals(std::size_t max_count);
  /// Changes one attribute of a proposal, then asks about the other algorithms, then changes tile and cluster.
  void add_variants(std::size_t max_count);
  /// The algorithm with these attributes, if it runs this product under the rules.
  std::optional<cublasLtMatmulHeuristicResult_t> checked(const AlgoConfig& config) const;

  std::vector<Candidate> found;

 private:
  /// What one attribute of an algorithm may be instead.
  struct Line {
    AlgoConfig base;
    Attribute attribute;
    std::vector<std::uint32_t> values;
    std::size_t next = 0;
  };

  std::vector<Algo> ask(std::size_t workspace_bytes, const Algo* only = nullptr) const;
  std::vector<Algo> ask_alike(int id) const;
  void add(const std::vector<Algo>& algos);
  bool add_built(const AlgoConfig& config);
  std::vector<int> listed_algos() const;
  std::vector<std::uint32_t> values_of(const AlgoConfig& config, Attribute attribute) const;
  void sort_tiles(std::vector<std::uint32_t>& tiles, const AlgoConfig& config) const;
  std::vector<Line> lines_from(std::size_t first) const;
  void take_turns(std::vector<Line> lines, std::size_t max_count);
  bool advance(Line& line);

  const ProductDescriptors& p_;
  const cublasLtHandle_t handle_;
  const std::size_t workspace_bytes_;
  std::set<std::string> seen_;  // names: found, or checked in vain
  mutable int n_checks_ = 0;
};

std::optional<cublasLtMatmulHeuristicResult_t> CandidateSearch::checked(const AlgoConfig& config) const {
  std::optional<Algo> algo = unset_algo(handle_, p_.product_, static_cast<int>(config[CUBLASLT_ALGO_CONFIG_ID]));
  if (!algo || !keeps_sums(config)) return std::nullopt;
  const AlgoConfig unset = config_of(*algo);
  for (const auto& [label, attribute] : kNameParts) {
    if (config[attribute] == unset[attribute]) continue;
    const cublasStatus_t status =
        cublasLtMatmulAlgoConfigSetAttribute(&*algo, attribute, &config[attribute], size_bytes(attribute));
    if (status != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  }
  ++n_checks_;
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, p_.operation_.get(), p_.b_.get(), p_.a_.get(),
                                                        p_.c_.get(), p_.d_.get(), &*algo, &result);
  const bool runs = status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
                    result.workspaceSize <= workspace_bytes_;
  result.algo = *algo;  // the check leaves it alone
  return runs && config_of(*algo) == config ? std::optional(result) : std::nullopt;
}

std::vector<Algo> CandidateSearch::ask(std::size_t workspace_bytes, const Algo* only) const {
  Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  FERRY_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(preference.receive()));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // Partial sums of a split k stay in f32: in the output's type they would be rounded more than once.
  set(preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  constexpr std::pair<cublasLtMatmulPreferenceAttributes_t, std::size_t> kAlignments[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 1},  // the first operand is b
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 0},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 2},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 3},
  };
  for (const auto& [attribute, operand] : kAlignments) {
    set(preference.get(), attribute, static_cast<std::uint32_t>(p_.product_.alignment[operand]));
  }
  std::array<cublasLtMatmulHeuristicResult_t, 32> results{};  // 13.1 returns 2 to 8
  if (only != nullptr) {
    set(preference.get(), CUBLASLT_MATMUL_PREF_SEARCH_MODE,
        static_cast<std::uint32_t>(CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID));
    results[0].algo = *only;
  }

  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, p_.operation_.get(), p_.b_.get(), p_.a_.get(), p_.c_.get(), p_.d_.get(),
                                     preference.get(), static_cast<int>(results.size()), results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  if (only != nullptr && status != CUBLAS_STATUS_SUCCESS) return {};
  FERRY_CUBLAS_CHECK(status);
  std::vector<Algo> algos;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes) algos.push_back(result.algo);
  }
  return algos;
}

void CandidateSearch::add(const std::vector<Algo>& algos) {
  for (const Algo& algo : algos) {
    Candidate candidate{algo, name_of(config_of(algo))};
    if (seen_.insert(candidate.name).second) found.push_back(std::move(candidate));
  }
}

/// What the library proposes when it may take no other algorithm.
std::vector<Algo> CandidateSearch::ask_alike(int id) const {
  const std::optional<Algo> algo = unset_algo(handle_, p_.product_, id);
  return algo ? ask(workspace_bytes_, &*algo) : std::vector<Algo>();
}

void CandidateSearch::add_proposals(std::size_t max_count) {
  add(ask(workspace_bytes_));
  if (found.empty() || found.size() >= max_count) return;
  for (const std::size_t bytes : {std::size_t{4} << 20, std::size_t{0}}) add(ask(std::min(bytes, workspace_bytes_)));
  std::vector<int> ids;
  for (const Candidate& candidate : found) {
    const auto id = static_cast<int>(config_of(candidate.algo)[CUBLASLT_ALGO_CONFIG_ID]);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  for (const int id : ids) add(ask_alike(id));
}

std::vector<int> CandidateSearch::listed_algos() const {
  const cudaDataType_t in = data_type(p_.product_.in);
  const cudaDataType_t out = data_type(p_.product_.out);
  std::vector<int> ids(128);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetIds(handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out,
                                                         static_cast<int>(ids.size()), ids.data(), &count);
  ids.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  return ids;
}

void CandidateSearch::add_variants(std::size_t max_count) {
  const std::vector<Line> lines = lines_from(0);
  take_turns(lines, max_count);
  if (found.size() >= max_count) return;
  const std::size_t n_before = found.size();
  for (const int id : listed_algos()) {
    for (const Algo& algo : ask_alike(id)) add_built(config_of(algo));
  }
  std::vector<Line> more = lines_from(n_before);
  for (const std::uint32_t cluster : kClusters) {
    for (const Line& line : lines) {
      if (line.attribute != kTile || line.base[kCluster] == CUBLASLT_CLUSTER_SHAPE_AUTO) continue;
      more.push_back({with(line.base, kCluster, cluster), kTile, line.values});
    }
  }
  take_turns(std::move(more), max_count);
}

/// One line for each attribute of the candidates from `first` on, kVariedProposals of them.
std::vector<CandidateSearch::Line> CandidateSearch::lines_from(std::size_t first) const {
  const std::size_t end = std::min(first + kVariedProposals, found.size());
  std::vector<Line> lines;
  for (const Attribute attribute : kVaried) {
    for (std::size_t i = first; i < end; ++i) {
      const AlgoConfig config = config_of(found[i].algo);
      lines.push_back({config, attribute, values_of(config, attribute)});
    }
  }
  return lines;
}

std::vector<std::uint32_t> CandidateSearch::values_of(const AlgoConfig& config, Attribute attribute) const {
  const std::optional<Algo> algo = unset_algo(handle_, p_.product_, static_cast<int>(config[CUBLASLT_ALGO_CONFIG_ID]));
  if (!algo) return {};
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_TILE_ID: {
      std::vector<std::uint32_t> tiles = listed_ids(*algo, CUBLASLT_ALGO_CAP_TILE_IDS, CUBLASLT_MATMUL_TILE_END);
      sort_tiles(tiles, config);
      return tiles;
    }
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return listed_ids(*algo, CUBLASLT_ALGO_CAP_STAGES_IDS, CUBLASLT_MATMUL_STAGES_END);
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
      if (config[kCluster] == CUBLASLT_CLUSTER_SHAPE_AUTO) return {};
      return {std::begin(kClusters), std::end(kClusters)};
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return below(std::min(capability<std::uint32_t>(*algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX), kMaxCustom) + 1);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      if (capability<std::uint32_t>(*algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) == 0) return {};
      return {1, 2, 3, 4, 6, 8};
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
      return below(capability<std::uint32_t>(*algo, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) + 1);
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
      if (config[attribute] == CUBLASLT_MATMUL_INNER_SHAPE_UNDEFINED) return {};
      return below(CUBLASLT_MATMUL_INNER_SHAPE_END);
    default: return {};
  }
}

/// Keeps the tiles that run, those of the likeliest speed first: as large as that of `config`, and with a full last
/// wave. The number of waves tells both.
void CandidateSearch::sort_tiles(std::vector<std::uint32_t>& tiles, const AlgoConfig& config) const {
  const auto own = checked(config);
  std::vector<std::pair<double, std::uint32_t>> rated;
  for (const std::uint32_t tile : tiles) {
    if (n_checks_ >= kMaxChecks) break;
    const auto result = checked(with(config, kTile, tile));
    if (!result) continue;
    const double waves = result->wavesCount;
    const bool is_known = own && own->wavesCount > 0 && waves > 0;
    const double loss = is_known ? std::abs(std::log2(waves / own->wavesCount)) + std::ceil(waves) / waves - 1 : 0;
    rated.emplace_back(loss, tile);
  }
  std::sort(rated.begin(), rated.end());
  tiles.clear();
  for (const auto& [loss, tile] : rated) tiles.push_back(tile);
}

/// Adds the next algorithm of each line in turn.
void CandidateSearch::take_turns(std::vector<Line> lines, std::size_t max_count) {
  for (bool any = true; any;) {
    any = false;
    for (Line& line : lines) {
      if (found.size() >= max_count) return;
      any = advance(line) || any;
    }
  }
}

/// False at the end of the line.
bool CandidateSearch::advance(Line& line) {
  while (line.next < line.values.size() && n_checks_ < kMaxChecks) {
    if (add_built(with(line.base, line.attribute, line.values[line.next++]))) return true;
  }
  return false;
}

/// False for one that was seen or does not run.
bool CandidateSearch::add_built(const AlgoConfig& config) {
  std::string name = name_of(config);
  if (!seen_.insert(name).second) return false;
  const auto result = checked(config);
  if (result) found.push_back({result->algo, std::move(name)});
  return result.has_value();
}

std::vector<Candidate> ProductDescriptors::candidates(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                                      std::size_t max_count) const {
  CandidateSearch search(*this, handle, workspace_bytes);
  search.add_proposals(max_count);
  if (!search.found.empty() && search.found.size() < max_count) search.add_variants(max_count);
  if (search.found.size() > max_count) search.found.resize(max_count);
  return std::move(search.found);
}

std::optional<Candidate> ProductDescriptors::named(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                                   const std::string& name) const {
  CandidateSearch search(*this, handle, workspace_bytes);
  search.add_proposals(std::numeric_limits<std::size_t>::max());
  for (Candidate& candidate : search.found) {
    if (candidate.name == name) return std::move(candidate);
  }
  const std::optional<AlgoConfig> config = parse_name(name);
  const auto result = config ? search.checked(*config) : std::nullopt;
  return result ? std::optional(Candidate{result->algo, name}) : std::nullopt;
}

cublasStatus_t ProductDescriptors::run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo,
                                       const Operands& operands, Scratch scratch, cudaStream_t stream) const {
  const float alpha = 1;
  return cublasLtMatmul(handle, operation_.get(), &alpha, operands.b, b_.get(), operands.a, a_.get(), &beta_,
                        operands.c, c_.get(), operands.d, d_.get(), &algo, scratch.data, scratch.size_bytes, stream);
}

bool ProductDescriptors::try_run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const Operands& operands,
                                 Scratch scratch, cudaStream_t stream) const {
  const cublasStatus_t status = run(handle, algo, operands, scratch, stream);
  const cudaError_t launch = cudaGetLastError();
  return status == CUBLAS_STATUS_SUCCESS && launch == cudaSuccess;
}

}  // namespace ferry::cuda
