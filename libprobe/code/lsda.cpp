#include "libprobe/code/lsda.hpp"

#include <cstdint>

#include "libprobe/code/frame_reader.hpp"

namespace reprobe {
namespace {

// The header: two encodings, two pointers, two lengths of at most ten bytes each.
constexpr std::uint64_t kLongestLsdaHead = 64;
// A call site: four numbers of at most ten bytes each.
constexpr std::uint64_t kLongestCallSite = 40;

constexpr unsigned DW_EH_PE_uleb128 = 0x01, DW_EH_PE_sleb128 = 0x09;

// Call sites are offsets, so their encoding's relation to a base means nothing; no personality
// looks at it.
std::optional<std::uint64_t> offset(FrameCursor& cursor, unsigned encoding) {
  switch (encoding & 0x0f) {
    case DW_EH_PE_uleb128:
      return cursor.uleb128();
    case DW_EH_PE_sleb128: {
      const auto value = cursor.sleb128();
      if (!value) return std::nullopt;
      return static_cast<std::uint64_t>(*value);
    }
    default:
      return cursor.unrelated(encoding);
  }
}

struct CallSites {
  VirtAddr landing_base;  // @LPStart
  unsigned encoding{};
  VirtAddr table;
  std::uint64_t length{};
};

std::optional<CallSites> read_call_sites(const ElfFile& file, const Fde& fde) {
  FrameCursor cursor(file.bytes_at(*fde.lsda, Size{kLongestLsdaHead}), *fde.lsda, file.header());
  CallSites sites;
  const auto base_encoding = cursor.fixed(1);
  if (!base_encoding) return std::nullopt;
  sites.landing_base = fde.start;
  if (*base_encoding != DW_EH_PE_omit) {
    // A base of 0 is written as udata4 or absptr 0: landing pads are then addresses.
    const auto base = cursor.pointer(static_cast<unsigned>(*base_encoding));
    if (!base) return std::nullopt;
    sites.landing_base = *base;
  }
  const auto type_encoding = cursor.fixed(1);
  if (!type_encoding) return std::nullopt;
  if (*type_encoding != DW_EH_PE_omit && !cursor.uleb128()) return std::nullopt;
  const auto encoding = cursor.fixed(1);
  const auto length = cursor.uleb128();
  if (!encoding || !length) return std::nullopt;
  sites.encoding = static_cast<unsigned>(*encoding);
  sites.table = cursor.address();
  sites.length = *length;
  return sites;
}

}  // namespace

std::optional<std::vector<CallSite>> call_sites(const ElfFile& file, const Fde& fde) {
  std::vector<CallSite> found;
  if (!fde.has_lsda) return found;
  if (!fde.lsda) return std::nullopt;
  const auto sites = read_call_sites(file, fde);
  if (!sites || sites->length / kLongestCallSite > fde.size.value) return std::nullopt;
  const ByteView bytes = file.bytes_at(sites->table, Size{sites->length});
  if (bytes.size() != sites->length) return std::nullopt;
  FrameCursor cursor(bytes, sites->table, file.header());
  std::uint64_t left = fde.size.value;
  while (!cursor.rest().empty()) {
    const auto start = offset(cursor, sites->encoding);
    const auto size = offset(cursor, sites->encoding);
    const auto pad = offset(cursor, sites->encoding);
    const auto action = cursor.uleb128();
    if (!start || !size || !pad || !action || left-- == 0) return std::nullopt;
    CallSite site{wrap_address(fde.start.value + *start, file.header()), Size{*size}, {}};
    if (*pad != 0) site.pad = wrap_address(sites->landing_base.value + *pad, file.header());
    found.push_back(site);
  }
  return found;
}

std::optional<std::vector<VirtAddr>> landing_pads(const ElfFile& file, const Fde& fde) {
  const auto sites = call_sites(file, fde);
  if (!sites) return std::nullopt;
  std::vector<VirtAddr> pads;
  for (const CallSite& site : *sites)
    if (site.pad) pads.push_back(*site.pad);
  return pads;
}

}  // namespace reprobe
