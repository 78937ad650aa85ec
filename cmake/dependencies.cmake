# Third-party libraries: the system's first, FetchContent as fallback. Each with its version floor and its reason.
include(FetchContent)
set(FETCHCONTENT_TRY_FIND_PACKAGE_MODE OPT_IN)

# ferry_dependency(<package> <version floor> <git url> <git tag>)
macro(ferry_dependency package version url tag)
  find_package(${package} ${version} QUIET)
  if(NOT ${package}_FOUND)
    message(STATUS "${package} >= ${version} is not installed: fetching ${tag}")
    FetchContent_Declare(${package} GIT_REPOSITORY ${url} GIT_TAG ${tag} GIT_SHALLOW ON SYSTEM)
    FetchContent_MakeAvailable(${package})
  endif()
endmacro()

find_package(Threads REQUIRED)

# fmt: messages (g++ 12 has no <format>).
ferry_dependency(fmt 9.1 https://github.com/fmtlib/fmt.git 9.1.0)
# spdlog: log levels, files and colours.
set(SPDLOG_FMT_EXTERNAL ON)
ferry_dependency(spdlog 1.10 https://github.com/gabime/spdlog.git v1.10.0)
# Eigen: matrix products and vector maths of the CPU backend.
ferry_dependency(Eigen3 3.4 https://gitlab.com/libeigen/eigen.git 3.4.0)
# CLI11: the command line.
ferry_dependency(CLI11 2.1 https://github.com/CLIUtils/CLI11.git v2.1.2)
# toml++: configuration files, with line numbers in errors.
ferry_dependency(tomlplusplus 3.3 https://github.com/marzer/tomlplusplus.git v3.3.0)
# nlohmann-json: config.json, safetensors headers, metrics.
ferry_dependency(nlohmann_json 3.11 https://github.com/nlohmann/json.git v3.11.2)

# xxHash 0.8: checksums of checkpoints. Its header is all that is used; XXH3 is stable since 0.8.
find_path(FERRY_XXHASH_INCLUDE xxhash.h)
if(NOT FERRY_XXHASH_INCLUDE)
  message(STATUS "xxHash >= 0.8 is not installed: fetching v0.8.1")
  FetchContent_Declare(xxhash GIT_REPOSITORY https://github.com/Cyan4973/xxHash.git GIT_TAG v0.8.1 GIT_SHALLOW ON)
  FetchContent_MakeAvailable(xxhash)
  set(FERRY_XXHASH_INCLUDE ${xxhash_SOURCE_DIR} CACHE PATH "Folder of xxhash.h" FORCE)
endif()
add_library(ferry_xxhash INTERFACE)
target_include_directories(ferry_xxhash SYSTEM INTERFACE ${FERRY_XXHASH_INCLUDE})

if(FERRY_TESTS)
  # Catch2 2 or 3: the tests; tests/catch.h hides the difference. Each refuses the other's number.
  find_package(Catch2 3 QUIET)
  if(NOT Catch2_FOUND)
    ferry_dependency(Catch2 2.13 https://github.com/catchorg/Catch2.git v3.5.2)
  endif()
  if(DEFINED catch2_SOURCE_DIR)
    list(APPEND CMAKE_MODULE_PATH ${catch2_SOURCE_DIR}/extras)
  endif()
  include(Catch)
endif()
