// SPDX-License-Identifier: Apache-2.0
#include "data/byte_vocabulary.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

TEST_CASE("every byte is a token and comes back") {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const std::vector<std::int32_t> ids = encode_bytes(text);
  for (std::int32_t id = 0; id < kByteVocabularySize; ++id) CHECK(ids[static_cast<std::size_t>(id)] == id);
  CHECK(decode_bytes(ids) == text);
}

TEST_CASE("an id that is no byte is an error") {
  for (const std::int32_t id : {-1, 256}) {
    const std::vector<std::int32_t> ids{65, id};
    check_error(ErrorKind::kShape, {"token " + std::to_string(id) + " is no byte"}, [&] { (void)decode_bytes(ids); });
  }
}

}  // namespace
}  // namespace ferry
