# cuDNN and cudnn-frontend, both optional: without them the CUDA backend has its own attention alone.
# Hints: CUDNN_ROOT (a folder with include/ and lib/), CUDNN_FRONTEND_INCLUDE (the folder of cudnn_frontend.h).
option(FERRY_CUDNN "Use cuDNN's attention where cuDNN and cudnn-frontend are found" ON)
set(FERRY_CUDNN_FRONTEND_URL https://github.com/NVIDIA/cudnn-frontend.git)
set(FERRY_CUDNN_FRONTEND_TAG v1.18.0)

# Folders where pip puts the wheels of the Python on the path.
function(ferry_python_folders result)
  find_program(FERRY_PYTHON NAMES python3 python)
  mark_as_advanced(FERRY_PYTHON)
  set(${result} "" PARENT_SCOPE)
  if(NOT FERRY_PYTHON)
    return()
  endif()
  execute_process(
    COMMAND ${FERRY_PYTHON} -c
      "import site, sysconfig; print(sysconfig.get_path('purelib'), site.getusersitepackages(), sep=';')"
    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    set(${result} "${folders}" PARENT_SCOPE)
  endif()
endfunction()

# <result> = "major.minor", from the lines "#define <prefix>_MAJOR<suffix> 9" of a header.
function(ferry_header_version header prefix suffix result)
  set(${result} "" PARENT_SCOPE)
  if(NOT EXISTS ${header})
    return()
  endif()
  file(STRINGS ${header} lines REGEX "#define +${prefix}_(MAJOR|MINOR)${suffix} +[0-9]+")
  if("${lines}" MATCHES "_MAJOR${suffix} +([0-9]+)")
    set(major ${CMAKE_MATCH_1})
    if("${lines}" MATCHES "_MINOR${suffix} +([0-9]+)")
      set(${result} ${major}.${CMAKE_MATCH_1} PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Headers alone; the repository's own targets are not wanted, hence a SOURCE_SUBDIR without CMakeLists.txt.
function(ferry_fetch_cudnn_frontend)
  find_package(Git QUIET)
  if(NOT GIT_FOUND)
    return()
  endif()
  execute_process(COMMAND ${GIT_EXECUTABLE} ls-remote --exit-code ${FERRY_CUDNN_FRONTEND_URL} ${FERRY_CUDNN_FRONTEND_TAG}
    TIMEOUT 30 OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    return()
  endif()
  message(STATUS "cudnn-frontend >= 1.18 is not installed: fetching ${FERRY_CUDNN_FRONTEND_TAG}")
  FetchContent_Declare(cudnn_frontend GIT_REPOSITORY ${FERRY_CUDNN_FRONTEND_URL} GIT_TAG ${FERRY_CUDNN_FRONTEND_TAG}
    GIT_SHALLOW ON SOURCE_SUBDIR include)
  FetchContent_MakeAvailable(cudnn_frontend)
  set(CUDNN_FRONTEND_INCLUDE ${cudnn_frontend_SOURCE_DIR}/include CACHE PATH "Folder of cudnn_frontend.h" FORCE)
endfunction()

# Sets FERRY_HAVE_CUDNN and, where it is true, makes ferry::cudnn: headers, definitions, libraries but the CUDA runtime.
# Call after find_package(CUDAToolkit).
function(ferry_find_cudnn)
  set(FERRY_HAVE_CUDNN OFF PARENT_SCOPE)
  if(NOT FERRY_CUDNN)
    message(STATUS "cuDNN: switched off (FERRY_CUDNN)")
    return()
  endif()
  ferry_python_folders(python_folders)
  set(wheels ${python_folders})
  list(TRANSFORM wheels APPEND /nvidia/cudnn)
  set(headers ${python_folders})
  list(TRANSFORM headers APPEND /include)

  # The wheel has no libcudnn.so, only the versioned name.
  find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR
    HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} PATHS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT} ${wheels}
    PATH_SUFFIXES lib lib64)
  # Beside the library first: headers of another version would be misleading.
  get_filename_component(library_folder "${CUDNN_LIBRARY}" DIRECTORY)
  find_path(CUDNN_INCLUDE_DIR cudnn.h
    HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${library_folder}/.. PATHS ${CUDAToolkit_INCLUDE_DIRS} ${wheels}
    PATH_SUFFIXES include)
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
    HINTS $ENV{CUDNN_FRONTEND_INCLUDE} PATHS ${CUDAToolkit_INCLUDE_DIRS} ${headers} PATH_SUFFIXES include)
  mark_as_advanced(CUDNN_LIBRARY CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE)

  set(without "attention has ferry's own kernels alone, fast for bf16 heads of 64, 80, 96 or 128 elements and slow for others")
  ferry_header_version("${CUDNN_INCLUDE_DIR}/cudnn_version.h" CUDNN "" version)
  if(NOT CUDNN_LIBRARY OR NOT CUDNN_INCLUDE_DIR OR "${version}" VERSION_LESS 9.0)
    message(STATUS "cuDNN >= 9.0 is missing (library: ${CUDNN_LIBRARY}, headers: ${CUDNN_INCLUDE_DIR} ${version}): ${without}. "
      "Install it, or pip install nvidia-cudnn-cu${CUDAToolkit_VERSION_MAJOR} and set CUDNN_ROOT to its folder nvidia/cudnn")
    return()
  endif()
  if(NOT CUDNN_FRONTEND_INCLUDE)
    ferry_fetch_cudnn_frontend()
  endif()
  # 1.18: the oldest version that ferry was built with.
  ferry_header_version("${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h" CUDNN_FRONTEND _VERSION frontend_version)
  if(NOT CUDNN_FRONTEND_INCLUDE OR "${frontend_version}" VERSION_LESS 1.18)
    message(STATUS "cuDNN ${version} is found, but cudnn-frontend >= 1.18 is missing (headers: ${CUDNN_FRONTEND_INCLUDE} "
      "${frontend_version}): ${without}. pip install --no-deps --target DIR nvidia-cudnn-frontend, then set "
      "CUDNN_FRONTEND_INCLUDE to DIR/include")
    return()
  endif()

  if(NOT TARGET CUDA::nvrtc)
    message(STATUS "cuDNN ${version} is found, but NVRTC of the CUDA Toolkit is missing, which cudnn-frontend needs: ${without}")
    return()
  endif()
  message(STATUS "cuDNN ${version} (${CUDNN_LIBRARY}), cudnn-frontend ${frontend_version} (${CUDNN_FRONTEND_INCLUDE})")
  if(NOT TARGET ferry::cudnn)
    add_library(ferry::cudnn INTERFACE IMPORTED GLOBAL)
    target_include_directories(ferry::cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE_DIR})
    target_compile_definitions(ferry::cudnn INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
    target_link_libraries(ferry::cudnn INTERFACE ${CUDNN_LIBRARY} CUDA::nvrtc)
  endif()
  set(FERRY_HAVE_CUDNN ON PARENT_SCOPE)
endfunction()
