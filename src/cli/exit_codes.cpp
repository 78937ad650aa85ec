// SPDX-License-Identifier: Apache-2.0
// Error kinds as exit codes; docs/troubleshooting.md lists them.
#include "cli/commands.h"

namespace ferry {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig: return 2;
    case ErrorKind::kIo: return 3;
    case ErrorKind::kMemory: return 4;
    case ErrorKind::kDevice: return 5;
    case ErrorKind::kShape:
    case ErrorKind::kDType: return 6;
  }
  return kExitInternal;
}

}  // namespace ferry
