// Proves that a rewrite changed only probe notes: every other byte is compared, every kept probe
// is found again at the same instruction, every removed one was dangling.
#pragma once

#include <utility>
#include <vector>

#include "libprobe/audit/link_objects.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// What the caller of compare() has compared: bytes of the input, as offset and size, and all
// probes.
struct ComparedElsewhere {
  std::vector<std::pair<FileOffset, Size>> bytes;
};

struct CompareOptions {
  bool allow_removed_ambiguous{};  // --remove-ambiguous was asked for
  bool allow_new_build_id{};       // --build-id=new was asked for
  // --from-debug: the file whose notes may be new in the result, in a section of their own. It must
  // outlive the call.
  const ElfFile* notes_from{};
  bool allow_respelled{};  // --respell was asked for
  const ComparedElsewhere* elsewhere{};
  const LinkObjects* objects{};  // --objects: what proves more of the input's notes
};

// Rules: verify-bytes, verify-section, verify-probe-lost, verify-probe-added, verify-build-id.
// Empty: the rewrite is proven. Headers and segments are covered by the bytes.
[[nodiscard]] std::vector<Finding> compare(const ElfFile& before, const ElfFile& after,
                                           const CompareOptions& options);

}  // namespace reprobe
