#include "libprobe/rewrite/legacy/own_bytes.hpp"

namespace reprobe {
namespace {

// Do the ranges share a byte?
bool overlap(FileOffset a, Size a_size, FileOffset b, Size b_size) {
  return a_size.value != 0 && b_size.value != 0 &&
         (in_range(a.value, b.value, b_size.value) || in_range(b.value, a.value, a_size.value));
}

}  // namespace

std::string why_not_own(const ElfFile& file, const Section& section) {
  if (!section.in_file || section.nobits()) return "its bytes are not in the file";
  if (section.allocated()) {
    const VirtAddr last{section.addr.value + section.size.value - 1};
    if (file.offset_of(section.addr) != section.offset ||
        file.offset_of(last) != FileOffset{section.offset.value + section.size.value - 1}) {
      return "sections and segments disagree about its place";
    }
  }
  const ElfHeader& header = file.header();
  const Size headers{header.shnum * header.shentsize}, segments{header.phnum * header.phentsize};
  if (overlap(section.offset, section.size, FileOffset{0}, Size{header.is64 ? 64U : 52U}) ||
      overlap(section.offset, section.size, header.shoff, headers) ||
      overlap(section.offset, section.size, header.phoff, segments)) {
    return "it overlaps the headers";
  }
  for (const Section& other : file.sections()) {
    if (other.index == section.index || other.nobits() || other.type == SHT_NULL) continue;
    if (overlap(section.offset, section.size, other.offset, other.size)) {
      return "it overlaps " + other.name;
    }
  }
  return "";
}

}  // namespace reprobe
