// SPDX-License-Identifier: Apache-2.0
// The MLP of a layer, whole or cut into parts of rows or of features.
#include <algorithm>
#include <vector>

#include "model/layer_parts.h"

namespace ferry {
namespace {

/// Some rows and all features, or all rows and some features.
struct Part {
  std::int64_t first_row = 0;
  std::int64_t n_rows = 0;
  std::int64_t first_feature = 0;
  std::int64_t n_features = 0;
};

std::vector<Part> parts_of(const LlamaShape& s, const MlpCut& cut) {
  std::vector<Part> parts;
  if (cut.by == MlpCut::By::kTokens) {
    for (std::int64_t row = 0; row < s.N(); row += cut.size) {
      parts.push_back({row, std::min(cut.size, s.N() - row), 0, s.F});
    }
  } else if (cut.by == MlpCut::By::kFeatures) {
    for (std::int64_t feature = 0; feature < s.F; feature += cut.size) {
      parts.push_back({0, s.N(), feature, std::min(cut.size, s.F - feature)});
    }
  } else {
    parts.push_back({0, s.N(), 0, s.F});
  }
  return parts;
}

/// The views of one part. What holds activations of the MLP is used from its beginning.
class PartViews {
 public:
  PartViews(const LayerCall& call, const Part& part) : call_(call), part_(part) {}

  bool all_features() const { return part_.n_features == call_.shape.F; }
  TensorView rows(const TensorView& whole) const { return whole.rows(part_.first_row, part_.n_rows); }
  TensorView gate_up() const { return from_start(call_.kept.gate_up, 2 * part_.n_features); }
  TensorView gate() const { return gate_up().columns(0, part_.n_features); }
  TensorView up() const { return gate_up().columns(part_.n_features, part_.n_features); }
  TensorView act() const { return from_start(call_.work.act, part_.n_features); }
  // Of a weight or its gradient: (w, C), (w, C) and (C, w) for w features.
  TensorView gate_rows(const TensorView& gate_up) const { return gate_up.rows(part_.first_feature, part_.n_features); }
  TensorView up_rows(const TensorView& gate_up) const {
    return gate_up.rows(call_.shape.F + part_.first_feature, part_.n_features);
  }
  TensorView down_columns(const TensorView& down) const { return down.columns(part_.first_feature, part_.n_features); }

 private:
  TensorView from_start(const TensorView& space, std::int64_t width) const {
    return {space.data, space.dtype, {part_.n_rows, width}};
  }

  const LayerCall& call_;
  const Part& part_;
};

void run_gate_up(const LayerCall& call, const PartViews& views) {
  const TensorView norm = views.rows(call.work.norm);
  const TensorView& weight = call.weights.gate_up;
  if (views.all_features()) return call.context.run(forward_product(norm, weight, views.gate_up()));
  call.context.run(forward_product(norm, views.gate_rows(weight), views.gate()));
  call.context.run(forward_product(norm, views.up_rows(weight), views.up()));
}

/// Gradients of the part's weights, its gate and up in place. work.act holds its own gradient until SwiGLU's backward
/// pass puts the activations in place of it. `add`: the sums hold other rows' gradients.
void part_backward(const LayerCall& call, const PartViews& views, const TensorView& d_out, const LayerTensors& sums,
                   bool add) {
  const OpContext& context = call.context;
  context.run(input_gradient(d_out, views.down_columns(call.weights.down), views.act()));
  context.run(SwigluBackward{.d_y = views.act(),
                             .gate = views.gate(),
                             .up = views.up(),
                             .d_gate = views.gate(),
                             .d_up = views.up(),
                             .y = views.act()});
  context.run(weight_gradient(d_out, views.act(), views.down_columns(sums.down), add));
  const TensorView norm = views.rows(call.work.norm);
  if (views.all_features()) return context.run(weight_gradient(views.gate_up(), norm, sums.gate_up, add));
  context.run(weight_gradient(views.gate(), norm, views.gate_rows(sums.gate_up), add));
  context.run(weight_gradient(views.up(), norm, views.up_rows(sums.gate_up), add));
}

/// The part's contribution to d_norm: final for its rows, or one term of a sum over features.
void part_input_gradient(const LayerCall& call, const PartViews& views, const TensorView& d_norm, bool add) {
  const TensorView& weight = call.weights.gate_up;
  const TensorView rows = views.rows(d_norm);
  if (views.all_features()) return call.context.run(input_gradient(views.gate_up(), weight, rows));
  call.context.run(input_gradient(views.gate(), views.gate_rows(weight), rows, add));
  call.context.run(input_gradient(views.up(), views.up_rows(weight), rows, true));
}

/// Where a sum over parts of features runs: in f32.
TensorView feature_sum(const LayerCall& call, const TensorView& result) {
  const bool sums = call.mlp_cut.by == MlpCut::By::kFeatures && result.dtype != DType::kF32;
  return sums ? call.work.mlp_sum : result;
}

}  // namespace

void mlp_gate_up(const LayerCall& call) {
  const Part whole = parts_of(call.shape, {}).front();
  run_gate_up(call, PartViews(call, whole));
}

void mlp_forward(const LayerCall& call, const TensorView& x_out) {
  const TensorView sum = feature_sum(call, x_out);
  TensorView addend = call.kept.x_mid;
  if (sum.dtype != addend.dtype) {
    call.context.run(Cast{.x = addend, .y = sum});
    addend = sum;
  }
  for (const Part& part : parts_of(call.shape, call.mlp_cut)) {
    const PartViews views(call, part);
    run_gate_up(call, views);
    call.context.run(SwigluForward{.gate = views.gate(), .up = views.up(), .y = views.act()});
    Matmul down = forward_product(views.act(), views.down_columns(call.weights.down), views.rows(sum));
    down.c = views.rows(part.first_feature == 0 ? addend : sum);
    call.context.run(down);
  }
  round_once(call.context, sum, x_out);
}

void mlp_backward(const LayerCall& call, const TensorView& d_stream, const LayerGradients& gradients) {
  const auto& [context, s, rope, weights, x, kept, work, cut, cache] = call;
  const auto& [sums, rounded, add, complete] = gradients;
  const TensorView d_norm = feature_sum(call, work.d_norm);
  for (const Part& part : parts_of(s, cut)) {
    const PartViews views(call, part);
    if (cut.cuts()) run_gate_up(call, views);
    part_backward(call, views, views.rows(d_stream), sums, add || part.first_row > 0);
    part_input_gradient(call, views, d_norm, part.first_feature > 0);
  }
  round_once(context, d_norm, work.d_norm);
  context.run(RmsNormBackward{.d_y = work.d_norm,
                              .x = kept.x_mid,
                              .weight = weights.post_norm,
                              .rstd = kept.rstd_mid,
                              .d_residual = d_stream,
                              .d_x = d_stream,
                              .d_weight = sums.post_norm,
                              .accumulate = add});
  if (!complete) return;
  round_once(context, sums.gate_up, rounded.gate_up);
  round_once(context, sums.down, rounded.down);
  round_once(context, sums.post_norm, rounded.post_norm);
}

}  // namespace ferry
