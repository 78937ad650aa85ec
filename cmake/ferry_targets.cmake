# How a folder of src/ becomes a library and a folder of tests/ becomes a test program.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "g++ ${CMAKE_CXX_COMPILER_VERSION} is too old: ferry needs g++ 12 or later (C++20)")
endif()

# Compiles go through ccache where it is installed.
find_program(FERRY_CCACHE ccache)
if(FERRY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FERRY_CCACHE})
endif()
if(FERRY_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${FERRY_CCACHE})
endif()

# Flags of all of ferry's own code; interface target, so that nothing global is touched.
add_library(ferry_flags INTERFACE)
target_compile_features(ferry_flags INTERFACE cxx_std_20)
target_compile_options(ferry_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -ffp-contract=off
  $<$<BOOL:${FERRY_WERROR}>:-Werror>>)
target_include_directories(ferry_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(FERRY_SANITIZE)
  target_compile_options(ferry_flags INTERFACE -fsanitize=${FERRY_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(ferry_flags INTERFACE -fsanitize=${FERRY_SANITIZE})
endif()

# ferry_library(<folder> SOURCES ... DEPENDS <folders below> [PRIVATE <third-party targets>])
function(ferry_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  add_library(ferry_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPENDS PREPEND ferry_)
  target_link_libraries(ferry_${name} PUBLIC ferry_flags ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE})
endfunction()

# ferry_isa_test(<what> <isa> <objects>): the objects share no symbol with those of other instruction sets.
function(ferry_isa_test what isa objects)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(NOT FERRY_TESTS OR NOT Python3_FOUND)
    return()
  endif()
  set(name "${what}: ${isa} objects share no symbol with other instruction sets")
  add_test(NAME ${name}
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_isa_symbols.py ${CMAKE_NM} ${isa} ${objects}
    COMMAND_EXPAND_LISTS)
  set_tests_properties(${name} PROPERTIES LABELS cpu)
endfunction()

# ferry_test(<folder> SOURCES ... DEPENDS <folders of src> [LABELS ...] [PRIVATE ...])
function(ferry_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS;PRIVATE" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  add_executable(ferry_test_${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPENDS PREPEND ferry_)
  target_link_libraries(ferry_test_${name} PRIVATE ferry_flags ${ARG_DEPENDS} ferry_catch_main ${ARG_PRIVATE})
  target_include_directories(ferry_test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(ferry_test_${name} PRIVATE
    FERRY_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FERRY_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  # g++ 12 and 13 see faults inside std::vector and std::string where small literals are inlined (GCC bug 105651 and
  # its like); the asan preset looks for real ones.
  target_compile_options(ferry_test_${name} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow>)
  # A test that needs a GPU says so where there is none (tests/gpu_or_skip.h); those that have one take turns.
  set(properties LABELS "${ARG_LABELS}" SKIP_REGULAR_EXPRESSION FERRY_GPU_TEST_SKIPPED)
  if(gpu IN_LIST ARG_LABELS)
    list(APPEND properties RESOURCE_LOCK gpu)
  endif()
  catch_discover_tests(ferry_test_${name} TEST_PREFIX "${name}: " PROPERTIES ${properties})
endfunction()

# Target "tidy": clang-tidy over src, with the checks of .clang-tidy; any finding is an error.
find_program(FERRY_RUN_CLANG_TIDY NAMES run-clang-tidy-14 run-clang-tidy)
if(FERRY_RUN_CLANG_TIDY)
  string(REGEX REPLACE "([][+.*^$()?|\\])" "\\\\\\1" source_regex ${PROJECT_SOURCE_DIR}/src/)
  add_custom_target(tidy
    COMMAND ${FERRY_RUN_CLANG_TIDY} -quiet -p ${PROJECT_BINARY_DIR} "^${source_regex}"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL VERBATIM)
endif()
