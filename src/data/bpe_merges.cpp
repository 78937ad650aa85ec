// SPDX-License-Identifier: Apache-2.0
// A queue of candidate pairs over a linked list of tokens.
#include "data/bpe_merges.h"

#include <queue>
#include <tuple>

namespace ferry {
namespace {

constexpr std::size_t kNone = SIZE_MAX;

struct Node {
  std::int32_t id = 0;
  std::size_t previous = kNone;
  std::size_t next = kNone;
  bool joined = false;  // part of the node before it
};

/// A pair that could be joined when it was queued.
struct Candidate {
  std::size_t rank = 0;
  std::size_t left = 0;  // node
  std::int32_t left_id = 0;
  std::int32_t right_id = 0;

  bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

void BpeMerges::add(std::int32_t left, std::int32_t right, std::int32_t result) {
  rules_.try_emplace(key_of(left, right), Rule{rules_.size(), result});
}

const BpeMerges::Rule* BpeMerges::find(std::int32_t left, std::int32_t right) const {
  const auto found = rules_.find(key_of(left, right));
  return found == rules_.end() ? nullptr : &found->second;
}

std::vector<std::int32_t> BpeMerges::apply(const std::vector<std::int32_t>& ids) const {
  std::vector<Node> nodes(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    nodes[i] = {.id = ids[i], .previous = i == 0 ? kNone : i - 1, .next = i + 1 == ids.size() ? kNone : i + 1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](std::size_t left) {
    if (left == kNone || nodes[left].next == kNone) return;
    const std::int32_t right_id = nodes[nodes[left].next].id;
    if (const Rule* rule = find(nodes[left].id, right_id)) queue.push({rule->rank, left, nodes[left].id, right_id});
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) consider(i);
  while (!queue.empty()) {
    const Candidate pair = queue.top();
    queue.pop();
    Node& left = nodes[pair.left];
    const bool holds =
        !left.joined && left.next != kNone && left.id == pair.left_id && nodes[left.next].id == pair.right_id;
    if (!holds) continue;
    Node& right = nodes[left.next];
    left.id = find(pair.left_id, pair.right_id)->result;
    right.joined = true;
    left.next = right.next;
    if (left.next != kNone) nodes[left.next].previous = pair.left;
    consider(left.previous);
    consider(pair.left);
  }
  std::vector<std::int32_t> result;
  for (const Node& node : nodes) {
    if (!node.joined) result.push_back(node.id);
  }
  return result;
}

}  // namespace ferry
