#include "libprobe/rewrite/sled/earlier_sleds.hpp"

#include <algorithm>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/rewrite/sled/sled_bytes.hpp"

namespace reprobe {
namespace {

bool has_sled(const ElfFile& file, VirtAddr at, SledKind kind) {
  const Bytes sled = sled_bytes(kind, false).bytes;
  return std::ranges::equal(file.bytes_at(at, Size{sled.size()}), sled);
}

}  // namespace

Result<EarlierSleds> earlier_sleds(const ElfFile& file, const ProbeFile& probes) {
  auto bytes = undo_all(file);
  if (!bytes) return tl::unexpected(bytes.error());
  auto original = ElfFile::open(memory_source(std::move(*bytes)));
  if (!original) return tl::unexpected(original.error());
  EarlierSleds earlier{std::move(*original), SledKind::nop10, {}};
  const ProbeFile before = read_probes(earlier.original);
  if (before.probes.size() != probes.probes.size()) {
    return fail(ErrorCode::refused, "", "the file has other notes than its original");
  }
  for (std::size_t i = 0; i < before.probes.size(); ++i) {
    const VirtAddr site = before.probes[i].site;
    const VirtAddr now = probes.probes[i].site;
    const bool nop5 = has_sled(file, now, SledKind::nop5);
    // In place the note stays. A probe that the compiler gave a longer nop needs no sled, and got
    // none or its own bytes.
    const bool in_place = nop5 || has_sled(file, now, SledKind::nop10);
    if (site == now && !in_place) continue;
    earlier.sites.insert(site);
    if (probes.probes[i].facts.slot) earlier.kind = SledKind::slot;
    if (nop5 && !has_sled(earlier.original, site, SledKind::nop5)) earlier.kind = SledKind::nop5;
  }
  return earlier;
}

}  // namespace reprobe
