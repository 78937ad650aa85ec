// SPDX-License-Identifier: Apache-2.0
// What a machine can do for a training step: `ferry bench machine`.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/model_config.h"
#include "core/cpu_topology.h"
#include "core/simd.h"
#include "offload/engine.h"
#include "offload/machine_rates.h"
#include "train/host_passes.h"

namespace ferry {

struct MachineBenchOptions {
  ModelConfig model;   // whose step has the products and attention
  EngineOptions step;  // of how many rows
  PoolPlacement pool;  // of AdamW
  SimdLevel level = SimdLevel::kScalar;
  std::int64_t n_params = std::int64_t{1} << 27;  // see AdamwBenchOptions
  /// Of copies; the largest fits half of `slab_bytes`. One of them is the engine's, EngineOptions::piece_bytes.
  std::vector<std::size_t> piece_bytes = {1U << 20, 4U << 20, 16U << 20, 64U << 20};
  std::size_t slab_bytes = 1U << 30;  // host memory of copies: far more than the caches hold
  double seconds = 3;                 // for each line of the tables
};

/// Sizes for a backend. The step is one of Llama-3.2-1B in bf16 on a device, that of the default config otherwise,
/// where a smaller slab does too: its copies are slower.
void choose_sizes(bool is_device, MachineBenchOptions& options);

/// Bytes per second of copies in pieces of one size.
struct CopyRates {
  std::size_t piece_bytes = 0;
  double h2d = 0, d2h = 0;            // one way at a time
  double h2d_both = 0, d2h_both = 0;  // at once
};

/// Bytes per second of HostPasses, means over the time measured; and of copies both ways beside each.
struct HostRates {
  std::array<double, HostPasses::kCount> passes{};
  std::array<double, HostPasses::kCount> copies{};
};

struct MachineBenchResult {
  std::vector<CopyRates> copies;
  HostRates alone;
  HostRates beside_copies;  // in pieces of the engine's size
  double step_flop_s = 0;   // products and attention in the order of a step
  double products_flop_s = 0;
  double attention_forward_flop_s = 0;
  double attention_backward_flop_s = 0;
  double device_bytes_s = 0;  // read and written by copies within the device
};

/// Gives each line to `report` as soon as it is measured. Blocks. Throws Error{kMemory} when something does not fit:
/// 14 bytes of host memory per parameter and the slab; on a device about 4 GiB.
MachineBenchResult bench_machine(Backend& backend, const MachineBenchOptions& options,
                                 const std::function<void(const std::string&)>& report);

/// What plans are made by: copies in pieces of the engine's size, means over the formats of AdamW.
MachineRates rates_of(const MachineBenchResult& result);

}  // namespace ferry
