// SPDX-License-Identifier: Apache-2.0
// What a call throws, as text, so that tests need no matchers (Catch2 2 and 3 keep them in different places).
#pragma once

#include <string>
#include <utility>

#include "core/error.h"

namespace ferry {

/// "shape: message" of the Error that fn throws; "assertion" for our own bugs; "" when it returns.
template <class Fn>
std::string thrown(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
  } catch (const Error& error) {
    return std::string(to_string(error.kind())) + ": " + error.what();
  } catch (const std::logic_error&) {
    return "assertion";
  }
  return "";
}

}  // namespace ferry
