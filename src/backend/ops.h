// SPDX-License-Identifier: Apache-2.0
// Every op of a backend: one args struct each, with its contract. Adding an op = a struct here, its line in `Op`, its
// checks in ops_check.cpp, one function per backend, one entry in tests/ops.
//
// All ops: storage f32 or bf16, arithmetic in f32, one rounding to nearest even on each output. Bits do not depend on
// the number of threads. Views are contiguous unless "strided" is said. Nothing is allocated, nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "core/tensor_view.h"
#include "core/tokens.h"
#include "optim/adamw.h"

namespace ferry {

enum class Access { kRead, kWrite, kReadWrite };

// Each struct lists its tensors once, in visit(fn): fn(Access, "name", view). Checks, tracers and comparing backends
// are written against that list. Absent optional tensors are visited too (view.data == nullptr).

/// Embedding forward: y[i,:] = table[ids[i],:].
/// Shapes    ids: (N); table: (V, C); y: (N, C).
/// DTypes    ids: i32; table, y: bf16 | f32 (equal).
/// Aliasing  none.
/// Errors    Error{kShape | kDType} before anything is enqueued. An id outside [0, V) is the caller's bug.
/// Cost      reads N*C + N, writes N*C elements.
/// Source    torch.nn.functional.embedding.
struct EmbeddingForward {
  static constexpr const char* kName = "embedding_forward";
  TensorView ids;    // (N)
  TensorView table;  // (V, C)
  TensorView y;      // (N, C)

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "ids", ids);
    fn(Access::kRead, "table", table);
    fn(Access::kWrite, "y", y);
  }
};

/// Embedding backward: for each id r that occurs, d_table[r,:] = round(f32(d_table[r,:]) + sum of d_y[i,:] over
/// ids[i] = r). The f32 sum starts at 0 and runs in order of position i; rows whose id does not occur are left alone.
/// Shapes    ids, order: (N); d_y: (N, C); d_table: (V, C). `order` holds 0..N-1 sorted by (ids[i], i).
/// DTypes    ids, order: i32; d_y, d_table: bf16 | f32 (equal); computes in f32.
/// Aliasing  none.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads N*C + U*C, writes U*C elements for U distinct ids.
/// Source    torch.nn.functional.embedding, backward.
struct EmbeddingBackward {
  static constexpr const char* kName = "embedding_backward";
  TensorView ids;      // (N)
  TensorView order;    // (N)
  TensorView d_y;      // (N, C)
  TensorView d_table;  // (V, C), accumulated into

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "ids", ids);
    fn(Access::kRead, "order", order);
    fn(Access::kRead, "d_y", d_y);
    fn(Access::kReadWrite, "d_table", d_table);
  }
};

/// RMSNorm forward, with an optional residual added first: s = x + addend (rounded to `sum`), or s = x without one;
/// y[r,c] = s[r,c] * rstd[r] * weight[c],  rstd[r] = 1/sqrt(mean_c s^2 + eps). The norm reads the rounded sum.
/// Shapes    x, addend, sum, y: (N, C); weight: (C); rstd: (N), kept for backward.
/// DTypes    x, addend, sum, weight, y: bf16 | f32 (all equal); rstd: f32; computes in f32.
/// Aliasing  y may be x or addend; sum may be x or addend, not y. addend and sum come together or not at all.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads N*C + C, writes N*C + N elements; with a residual N*C more each way.
/// Source    Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
struct RmsNormForward {
  static constexpr const char* kName = "rmsnorm_forward";
  TensorView x;       // (N, C)
  TensorView addend;  // (N, C), optional
  TensorView sum;     // (N, C), optional
  TensorView weight;  // (C)
  TensorView y;       // (N, C)
  TensorView rstd;    // (N)
  float eps = 1e-5F;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "x", x);
    fn(Access::kRead, "addend", addend);
    fn(Access::kWrite, "sum", sum);
    fn(Access::kRead, "weight", weight);
    fn(Access::kWrite, "y", y);
    fn(Access::kWrite, "rstd", rstd);
  }
};

/// RMSNorm backward: with g = d_y * weight and n = x * rstd,
/// d_x = d_residual + rstd * (g - n * mean_c(g * n));  d_weight[c] = sum_r d_y[r,c] * n[r,c] in fixed blocks of rows.
/// With `accumulate`, d_weight[c] += that sum.
/// Shapes    d_y, x, d_residual, d_x: (N, C); weight, d_weight: (C); rstd: (N).
/// DTypes    rstd: f32; d_weight: the others' dtype or f32 (f32 where it accumulates); the others bf16 | f32 (all
///           equal); computes in f32.
/// Aliasing  d_x may be d_y or d_residual. d_residual is optional (absent = 0).
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads 3*N*C, writes N*C + C elements; scratch for the partial sums of d_weight.
/// Source    derivative of arXiv:1910.07467, eq. 4.
struct RmsNormBackward {
  static constexpr const char* kName = "rmsnorm_backward";
  TensorView d_y;         // (N, C)
  TensorView x;           // (N, C)
  TensorView weight;      // (C)
  TensorView rstd;        // (N)
  TensorView d_residual;  // (N, C), optional
  TensorView d_x;         // (N, C)
  TensorView d_weight;    // (C)
  bool accumulate = false;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "d_y", d_y);
    fn(Access::kRead, "x", x);
    fn(Access::kRead, "weight", weight);
    fn(Access::kRead, "rstd", rstd);
    fn(Access::kRead, "d_residual", d_residual);
    fn(Access::kWrite, "d_x", d_x);
    fn(accumulate ? Access::kReadWrite : Access::kWrite, "d_weight", d_weight);
  }
};

/// Matrix product d = op(a) op(b) + c, where op transposes its operand if asked.
/// Shapes    op(a): (M, K); op(b): (K, N); c, d: (M, N). All strided by rows. K >= 1.
/// DTypes    a, b: bf16 | f32 (equal); d: that dtype or f32; c: d's dtype. Sums and adds c in f32, rounds once.
/// Aliasing  c may be d (accumulation); c is optional (absent = 0). a and b may not overlap d.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      2*M*N*K FLOP.
/// Source    BLAS level 3 GEMM, alpha = 1, beta = 0 or 1.
struct Matmul {
  static constexpr const char* kName = "matmul";
  TensorView a;  // (M, K), or (K, M) when transpose_a
  TensorView b;  // (K, N), or (N, K) when transpose_b
  TensorView c;  // (M, N), optional
  TensorView d;  // (M, N)
  bool transpose_a = false;
  bool transpose_b = false;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "a", a);
    fn(Access::kRead, "b", b);
    fn(Access::kRead, "c", c);
    fn(Access::kWrite, "d", d);
  }
};

/// Rotary position embedding in place, half-split (Hugging Face) layout: for j < D/2,
/// (x[j], x[j+D/2]) -> (x[j]*cos - x[j+D/2]*sin, x[j+D/2]*cos + x[j]*sin), angles of position t in row t of the tables.
/// inverse negates sin: the backward pass of the forward rotation.
/// Shapes    x: (B, T, heads, D), strided; cos, sin: (T, D/2). D even.
/// DTypes    x: bf16 | f32; cos, sin: f32; computes in f32.
/// Aliasing  in place.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads and writes B*T*heads*D elements.
/// Source    Su et al. 2021, arXiv:2104.09864, eq. 34; layout of transformers' apply_rotary_pos_emb.
struct Rope {
  static constexpr const char* kName = "rope";
  TensorView x;    // (B, T, heads, D)
  TensorView cos;  // (T, D/2)
  TensorView sin;  // (T, D/2)
  bool inverse = false;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kReadWrite, "x", x);
    fn(Access::kRead, "cos", cos);
    fn(Access::kRead, "sin", sin);
  }
};

/// Causal attention forward: o = softmax(scale * q k^T) v, query i of T sees keys j <= i + S - T.
/// Query head h reads key/value head h / (H/G).  lse[b,h,i] = log sum_j exp(scale * q k^T).
/// Shapes    q, o: (B, T, H, D); k, v: (B, S, G, D); all strided. lse: (B, H, T). H % G == 0, S >= T >= 1.
/// DTypes    q, k, v, o: bf16 | f32 (all equal); lse: f32; computes in f32.
/// Aliasing  none.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      4*B*H*D*(number of visible pairs) FLOP.
/// Source    Dao et al. 2022, arXiv:2205.14135; GQA: Ainslie et al. 2023, arXiv:2305.13245.
struct AttentionForward {
  static constexpr const char* kName = "attention_forward";
  TensorView q;    // (B, T, H, D)
  TensorView k;    // (B, S, G, D)
  TensorView v;    // (B, S, G, D)
  TensorView o;    // (B, T, H, D)
  TensorView lse;  // (B, H, T)
  float scale = 1;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "q", q);
    fn(Access::kRead, "k", k);
    fn(Access::kRead, "v", v);
    fn(Access::kWrite, "o", o);
    fn(Access::kWrite, "lse", lse);
  }
};

/// Causal attention backward from the saved output and log-sum-exp; the gradients of a key/value head sum over its
/// query heads in ascending order.
/// Shapes    as in AttentionForward; d_x has the shape of x (each with strides of its own).
/// DTypes    lse: f32; the others bf16 | f32 (all equal); computes in f32.
/// Aliasing  d_q, d_k, d_v may not overlap any input.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      10*B*H*D*(number of visible pairs) FLOP; scratch as asked.
/// Source    arXiv:2205.14135, algorithm 4.
struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  TensorView q;    // (B, T, H, D)
  TensorView k;    // (B, S, G, D)
  TensorView v;    // (B, S, G, D)
  TensorView o;    // (B, T, H, D)
  TensorView lse;  // (B, H, T)
  TensorView d_o;  // (B, T, H, D)
  TensorView d_q;  // (B, T, H, D)
  TensorView d_k;  // (B, S, G, D)
  TensorView d_v;  // (B, S, G, D)
  float scale = 1;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "q", q);
    fn(Access::kRead, "k", k);
    fn(Access::kRead, "v", v);
    fn(Access::kRead, "o", o);
    fn(Access::kRead, "lse", lse);
    fn(Access::kRead, "d_o", d_o);
    fn(Access::kWrite, "d_q", d_q);
    fn(Access::kWrite, "d_k", d_k);
    fn(Access::kWrite, "d_v", d_v);
  }
};

/// SwiGLU forward: y = silu(gate) * up,  silu(x) = x / (1 + exp(-x)).
/// Shapes    gate, up, y: (N, F), strided by rows.
/// DTypes    all bf16 | f32 (equal); computes in f32.
/// Aliasing  y may be gate or up.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads 2*N*F, writes N*F elements.
/// Source    Shazeer 2020, arXiv:2002.05202, eq. 6.
struct SwigluForward {
  static constexpr const char* kName = "swiglu_forward";
  TensorView gate;  // (N, F)
  TensorView up;    // (N, F)
  TensorView y;     // (N, F)

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "gate", gate);
    fn(Access::kRead, "up", up);
    fn(Access::kWrite, "y", y);
  }
};

/// SwiGLU backward, s = sigmoid(gate): d_up = d_y * gate * s,  d_gate = d_y * up * s * (1 + gate * (1 - s)).
/// With y also the forward pass's y again, in the bits that swiglu_forward gives.
/// Shapes    d_y, gate, up, d_gate, d_up, y: (N, F), strided by rows.
/// DTypes    all bf16 | f32 (equal); computes in f32.
/// Aliasing  d_gate may be gate, d_up may be up and y may be d_y. y is optional.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads 3*N*F, writes 2*N*F elements, 3*N*F with y.
/// Source    derivative of arXiv:2002.05202, eq. 6.
struct SwigluBackward {
  static constexpr const char* kName = "swiglu_backward";
  TensorView d_y;     // (N, F)
  TensorView gate;    // (N, F)
  TensorView up;      // (N, F)
  TensorView d_gate;  // (N, F)
  TensorView d_up;    // (N, F)
  TensorView y;       // (N, F), optional

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "d_y", d_y);
    fn(Access::kRead, "gate", gate);
    fn(Access::kRead, "up", up);
    fn(Access::kWrite, "d_gate", d_gate);
    fn(Access::kWrite, "d_up", d_up);
    fn(Access::kWrite, "y", y);
  }
};

/// One vocabulary chunk of cross-entropy forward: lse[i] = log(exp(lse[i]) + sum_c exp(logits[i,c])), stably, and
/// target_logit[i] = logits[i, targets[i] - first_token] where the target lies in the chunk. With first_token == 0 the
/// previous contents are not read: lse starts at -inf, target_logit at 0. Rows with target -100 take part in lse only.
/// Shapes    logits: (N, Vc), strided by rows; targets, lse, target_logit: (N).
/// DTypes    logits: bf16 | f32; targets: i32; lse, target_logit: f32.
/// Aliasing  none.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads N*Vc elements.
/// Source    Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3.
struct CrossEntropyChunk {
  static constexpr const char* kName = "cross_entropy_chunk";
  TensorView logits;        // (N, Vc)
  TensorView targets;       // (N)
  TensorView lse;           // (N)
  TensorView target_logit;  // (N)
  std::int64_t first_token = 0;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "logits", logits);
    fn(Access::kRead, "targets", targets);
    fn(first_token == 0 ? Access::kWrite : Access::kReadWrite, "lse", lse);
    fn(first_token == 0 ? Access::kWrite : Access::kReadWrite, "target_logit", target_logit);
  }
};

/// Mean cross-entropy: loss = scale * sum over targets[i] != -100 of (lse[i] - target_logit[i]), in fixed order.
/// Shapes    targets, lse, target_logit: (N); loss: (1).
/// DTypes    targets: i32; the others f32. scale = 1 / (number of valid targets).
/// Aliasing  none.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads 3*N elements.
/// Source    torch.nn.functional.cross_entropy, ignore_index = -100.
struct CrossEntropyLoss {
  static constexpr const char* kName = "cross_entropy_loss";
  TensorView targets;       // (N)
  TensorView lse;           // (N)
  TensorView target_logit;  // (N)
  TensorView loss;          // (1)
  float scale = 1;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "targets", targets);
    fn(Access::kRead, "lse", lse);
    fn(Access::kRead, "target_logit", target_logit);
    fn(Access::kWrite, "loss", loss);
  }
};

/// Gradient of the mean cross-entropy in place: logits[i,c] = scale * (exp(logits[i,c] - lse[i]) - [targets[i] == c +
/// first_token]); rows with target -100 become 0.
/// Shapes    logits: (N, Vc), strided by rows; targets, lse: (N).
/// DTypes    logits: bf16 | f32; targets: i32; lse: f32. scale = 1 / (number of valid targets).
/// Aliasing  in place.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads and writes N*Vc elements.
/// Source    derivative of torch.nn.functional.cross_entropy.
struct CrossEntropyBackward {
  static constexpr const char* kName = "cross_entropy_backward";
  TensorView logits;   // (N, Vc)
  TensorView targets;  // (N)
  TensorView lse;      // (N)
  std::int64_t first_token = 0;
  float scale = 1;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kReadWrite, "logits", logits);
    fn(Access::kRead, "targets", targets);
    fn(Access::kRead, "lse", lse);
  }
};

/// Converts between f32 and bf16 (nearest even), or copies within the device when the dtypes agree.
/// Shapes    x, y: equal, contiguous.
/// DTypes    bf16 | f32 each.
/// Aliasing  none.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads and writes each element once.
/// Source    IEEE 754-2019, 5.4.2.
struct Cast {
  static constexpr const char* kName = "cast";
  TensorView x;
  TensorView y;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "x", x);
    fn(Access::kWrite, "y", y);
  }
};

/// Sets every byte: 0 makes zeros of every dtype, kNaNByte makes NaN of f32 and bf16.
/// Shapes    x: any, contiguous.
/// DTypes    any.
/// Aliasing  none.
/// Errors    Error{kShape} before anything is enqueued.
/// Cost      writes each element once.
/// Source    memset.
struct Fill {
  static constexpr const char* kName = "fill";
  static constexpr std::uint8_t kNaNByte = 0xff;
  TensorView x;
  std::uint8_t byte = 0;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kWrite, "x", x);
  }
};

/// Sum of squares in fixed blocks and order: y[0] = sum_i x[i]^2. With `skip`, rows r with skip[r] != 0 count as 0.
/// Shapes    x: any, contiguous; (R, C) with skip; skip: (R), optional; y: (1).
/// DTypes    x: bf16 | f32; skip: i32; y: f32; computes in f32.
/// Aliasing  none.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      reads each element once; scratch for the block sums.
/// Source    torch.nn.utils.get_total_norm.
struct SumOfSquares {
  static constexpr const char* kName = "sum_of_squares";
  TensorView x;
  TensorView skip;  // (R), optional
  TensorView y;     // (1)

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kRead, "x", x);
    fn(Access::kRead, "skip", skip);
    fn(Access::kWrite, "y", y);
  }
};

/// One AdamW update of a flat range; the same bits as adamw_update on the host.
/// Shapes    weight, weight_low, m, v, gradient: (n). weight_low only for split f32 masters.
/// DTypes    weight, gradient: bf16 | f32 (equal). weight f32: m, v f32, no weight_low. weight bf16: m, v f32 | bf16
///           with weight_low (i16), or m, v bf16 without.
/// Aliasing  none; weight, weight_low, m and v are updated in place.
/// Errors    Error{kShape | kDType} before anything is enqueued.
/// Cost      14 (bf16 state), 18 (mixed), 26 (bf16 weight, f32 state), 28 (f32 weight) bytes per element.
/// Source    Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; order of operations of torch.optim.AdamW.
struct Adamw {
  static constexpr const char* kName = "adamw";
  TensorView weight;      // (n)
  TensorView weight_low;  // (n), optional
  TensorView m;           // (n)
  TensorView v;           // (n)
  TensorView gradient;    // (n)
  AdamwScalars scalars;
  std::int64_t parameter = 0;  // as in AdamwRange
  std::int64_t element = 0;

  template <class Fn>
  void visit(Fn&& fn) const {
    fn(Access::kReadWrite, "weight", weight);
    fn(Access::kReadWrite, "weight_low", weight_low);
    fn(Access::kReadWrite, "m", m);
    fn(Access::kReadWrite, "v", v);
    fn(Access::kRead, "gradient", gradient);
  }
};

using Op = std::variant<EmbeddingForward, EmbeddingBackward, RmsNormForward, RmsNormBackward, Matmul, Rope,
                        AttentionForward, AttentionBackward, SwigluForward, SwigluBackward, CrossEntropyChunk,
                        CrossEntropyLoss, CrossEntropyBackward, Cast, Fill, SumOfSquares, Adamw>;

/// The contract of every op, checked without touching its data. Throws Error{kShape | kDType} naming op, tensor, got
/// and expected. Every backend calls it first.
void check_op(const Op& op);

const char* op_name(const Op& op);

}  // namespace ferry
