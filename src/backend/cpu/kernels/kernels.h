// SPDX-License-Identifier: Apache-2.0
// Declarations shared by the kernel sources of one instruction set. FERRY_ISA names it: scalar, avx2 or avx512.
//
// Nothing outside ferry::cpu::FERRY_ISA and the renamed Eigen may leave these objects: the linker keeps one copy of an
// inline function, and could keep the AVX-512 one for everybody. So no std:: templates with code, no inline functions
// of other headers; scripts/check_isa_symbols.py checks the objects.
#pragma once

#include "backend/cpu/kernels/kernel_table.h"

namespace ferry::cpu::FERRY_ISA {

void matmul(const Matmul& op, const MatmulTile& tile, float* workspace);
void plain_product(const Matmul& op, Range rows);
void attention_forward(const AttentionForward& op, const QueryTile& tile, float* workspace);
void attention_backward(const AttentionBackward& op, std::int64_t batch, std::int64_t kv_head, float* sum_d_k,
                        float* sum_d_v, float* workspace);
void rmsnorm_forward(const RmsNormForward& op, Range rows);
void rmsnorm_backward(const RmsNormBackward& op, Range rows, float* partial);
void rmsnorm_d_weight(const RmsNormBackward& op, const float* partials, std::int64_t n_partials, Range columns);
void rope(const Rope& op, Range rows);
void swiglu_forward(const SwigluForward& op, Range rows);
void swiglu_backward(const SwigluBackward& op, Range rows);
void cross_entropy_chunk(const CrossEntropyChunk& op, Range rows);
void cross_entropy_loss(const CrossEntropyLoss& op);
void cross_entropy_backward(const CrossEntropyBackward& op, Range rows);
void cast(const Cast& op, Range elems);
float sum_of_squares(const SumOfSquares& op, Range elems);
float sum(const float* x, std::int64_t n);

}  // namespace ferry::cpu::FERRY_ISA
