// The inputs of a link, as witnesses of its output. A note of the output is matched with the note
// of an object that says the same; where the code that the object's note points at is found in the
// output, at the address that the note says, the note is live. Where the note says the bare offset
// in the object's section, as all other notes of that section do, the linker gave the section no
// address: it was discarded, and the note is dangling.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// A section of an object that notes point into.
struct ObjectCode {
  const Section* section{};
  ByteView bytes;
  // What the linker may have changed of them: [begin, end), sorted and apart.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> relocated;
  std::uint64_t fixed{};  // how many bytes are outside of these
  // Functions that no other object may define, with their offsets; empty in a COMDAT group.
  std::vector<std::pair<std::string_view, std::uint64_t>> functions;
};

struct LinkObject {
  std::string name;
  ElfFile file;
  std::vector<Note> notes;
  std::map<std::uint32_t, ObjectCode> code;  // by section index
};

class LinkObjects {
 public:
  // Reads the notes of one input; what is no relocatable object, or has no notes, is passed over.
  // `name` is for people: "libx.a(y.o)".
  void add(std::string name, ElfFile object);

  [[nodiscard]] bool empty() const { return objects_.empty(); }

  // Gives the probes of a linked file, which are judged, the verdicts that the objects prove; the
  // others keep theirs. A kept relocation that says otherwise is believed.
  void judge(const ElfFile& file, ProbeFile& probes) const;

 private:
  std::vector<std::unique_ptr<const LinkObject>> objects_;
};

}  // namespace reprobe
