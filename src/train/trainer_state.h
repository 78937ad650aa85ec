// SPDX-License-Identifier: Apache-2.0
// What a Trainer knows between two steps, besides what its engine holds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/batch_loader.h"
#include "train/loss_plot.h"

namespace ferry {

struct TrainerState {
  /// The last evaluation.
  struct Evaluation {
    std::int64_t step = 0;
    double val_loss = 0;
    std::int64_t val_tokens = 0;
    double elapsed_s = 0;

    bool operator==(const Evaluation&) const = default;
  };

  std::int64_t step = 0;    // steps taken
  std::int64_t tokens = 0;  // valid targets trained
  std::int64_t skipped_steps = 0;
  DataCursor cursor;  // of the next training batch
  double elapsed_s = 0;
  LossHistory::State losses;
  std::vector<LossPoint> val_curve;
  std::optional<Evaluation> last_eval;

  bool operator==(const TrainerState&) const = default;
};

}  // namespace ferry
