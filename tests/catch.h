// SPDX-License-Identifier: Apache-2.0
// Catch2 2 or 3, whichever is installed; tests include this instead.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // global in Catch2 2
#else
#include <catch2/catch.hpp>
#endif
