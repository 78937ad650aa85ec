// SPDX-License-Identifier: Apache-2.0
// What a machine can do in a second: what plans are compared by, and what a step is expected to take.
#pragma once

namespace ferry {

/// The defaults are those of one machine: H200, PCIe Gen5 x16, 24 cores. `ferry bench machine` measures others.
struct MachineRates {
  double products_flop_s = 650e12;  // matrix products, as a step runs them
  double attention_forward_flop_s = 650e12;
  double attention_backward_flop_s = 650e12;
  double device_bytes_s = 3.8e12;  // read and written in device memory
  double h2d_bytes_s = 50e9;       // copied to the device, while nothing is copied to the host
  double h2d_both_bytes_s = 50e9;  // the same, while both directions are busy
  double d2h_both_bytes_s = 50e9;  // copied to the host, while both directions are busy
  double adamw_bytes_s = 160e9;    // read and written in host memory by AdamW alone
  double host_bytes_s = 160e9;     // the same, AdamW and copies both ways together

  bool operator==(const MachineRates&) const = default;
};

}  // namespace ferry
