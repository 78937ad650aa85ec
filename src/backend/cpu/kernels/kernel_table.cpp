// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set: constants only, so that nothing of it runs at program start.
#include "backend/cpu/kernels/kernels.h"

namespace ferry::cpu::FERRY_ISA {

constinit const KernelTable kKernels = {
    .matmul = matmul,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .rmsnorm_d_weight = rmsnorm_d_weight,
    .rope = rope,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .cross_entropy_chunk = cross_entropy_chunk,
    .cross_entropy_loss = cross_entropy_loss,
    .cross_entropy_backward = cross_entropy_backward,
    .cast = cast,
    .sum_of_squares = sum_of_squares,
    .sum = sum,
    .plain_product = plain_product,
};

}  // namespace ferry::cpu::FERRY_ISA
