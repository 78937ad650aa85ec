// SPDX-License-Identifier: Apache-2.0
// Whether strided views share memory.
#pragma once

#include "core/tensor_view.h"

namespace ferry {

/// True when some byte belongs to an element of both views: columns of one matrix side by side do not overlap.
/// Exact for views without self_overlap. An absent or empty view overlaps nothing.
bool overlap(const TensorView& a, const TensorView& b);

/// True when two elements of the view may share memory (a stride smaller than what it steps over, or negative).
bool self_overlap(const TensorView& view);

}  // namespace ferry
