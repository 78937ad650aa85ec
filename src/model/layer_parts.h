// SPDX-License-Identifier: Apache-2.0
// The products of linear layers, and the MLP of a layer; private to src/model.
#pragma once

#include "model/llama.h"

namespace ferry {

/// y = x weight^T
inline Matmul forward_product(const TensorView& x, const TensorView& weight, const TensorView& y) {
  return {.a = x, .b = weight, .c = {}, .d = y, .transpose_a = false, .transpose_b = true};
}

/// d_x = d_y weight, added to what is there if `add`.
inline Matmul input_gradient(const TensorView& d_y, const TensorView& weight, const TensorView& d_x, bool add = false) {
  return {.a = d_y, .b = weight, .c = add ? d_x : TensorView(), .d = d_x};
}

/// d_weight = d_y^T x, added to what is there if `add`.
inline Matmul weight_gradient(const TensorView& d_y, const TensorView& x, const TensorView& d_weight, bool add) {
  return {
      .a = d_y, .b = x, .c = add ? d_weight : TensorView(), .d = d_weight, .transpose_a = true, .transpose_b = false};
}

/// kept.gate_up = work.norm gate_up^T, of an MLP that is not cut.
void mlp_gate_up(const LayerCall& call);

/// x_out = x_mid + swiglu(work.norm gate_up^T) down^T
void mlp_forward(const LayerCall& call, const TensorView& x_out);

/// Backward pass of the MLP and its norm: d_stream becomes the gradient of x_mid. work.norm holds norm(x_mid);
/// kept.gate_up is there already unless the MLP is cut.
void mlp_backward(const LayerCall& call, const TensorView& d_stream, const LayerGradients& gradients);

}  // namespace ferry
