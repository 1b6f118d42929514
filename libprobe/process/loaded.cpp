#include "libprobe/process/loaded.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <set>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/audit/read_probes.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kPage = 4096;  // the smallest: program headers are rounded to it at least
constexpr Size kCounterBytes{2};
constexpr std::string_view kMagic =
    "\x7f"
    "ELF";

// A part of a file as a file of its own.
class PartSource final : public ByteSource {
 public:
  PartSource(std::shared_ptr<const ByteSource> whole, std::uint64_t offset)
      : whole_(std::move(whole)), offset_(offset) {}
  std::uint64_t size() const override { return whole_->size() - offset_; }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    const auto at = checked_add(offset.value, offset_);
    if (!at) return fail(ErrorCode::unreadable, "", fmt::format("{} lies outside the file", what));
    return whole_->slice(FileOffset{*at}, size, what);
  }

 private:
  std::shared_ptr<const ByteSource> whole_;
  std::uint64_t offset_;
};

bool same_file(const Mapping& a, const Mapping& b) {
  return a.device == b.device && a.inode == b.inode;
}

bool is_file_at(const std::filesystem::path& path, const Mapping& mapping) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && status.st_dev == mapping.device &&
         status.st_ino == mapping.inode;
}

bool begins_elf(const ByteSource& source, std::uint64_t offset) {
  const auto magic = source.slice(FileOffset{offset}, Size{kMagic.size()}, "the ELF magic");
  return magic && as_text(*magic) == kMagic;
}

// overlayfs shows another device in maps than stat() gives. What the process has in memory then
// tells: the build-id of the file, at its place.
bool has_same_build_id(const Process& process, const std::vector<Mapping>& mappings,
                       const Mapping& mapping, const std::shared_ptr<const ByteSource>& source) {
  const auto file = ElfFile::open(source);
  const auto range = file ? file->build_id_range() : std::nullopt;
  if (!range) return false;
  const auto id = source->slice(range->first, range->second, "the build-id");
  for (const Mapping& part : mappings) {
    if (!same_file(part, mapping) || !id ||
        !in_range(range->first.value, part.offset, part.size())) {
      continue;
    }
    const auto memory =
        process.memory(part.start + (range->first.value - part.offset), range->second);
    if (memory && std::ranges::equal(*memory, *id)) return true;
  }
  return false;
}

Result<std::shared_ptr<const ByteSource>> open_mapped(const Process& process,
                                                      const std::vector<Mapping>& mappings,
                                                      const Mapping& mapping) {
  // The very inode, whatever its path leads to now, in whatever mount namespace: root only.
  const auto link =
      process.entry("map_files") / fmt::format("{:x}-{:x}", mapping.start, mapping.end);
  if (auto source = map_file(link)) return source;
  if (is_file_at(process.entry("exe"), mapping)) return map_file(process.entry("exe"));
  const std::filesystem::path path =
      process.entry("root") / mapping.path.substr(mapping.path.starts_with('/'));
  if (is_file_at(path, mapping)) return map_file(path);
  auto other = mapping.deleted ? tl::unexpected(Error{}) : map_file(path);
  if (other && has_same_build_id(process, mappings, mapping, *other)) return other;
  return fail(ErrorCode::unreadable, "",
              mapping.deleted ? "deleted or replaced on disk, and only root can still read it"
              : other         ? "another file is at its path now, and only root can still read it"
                              : "cannot be opened: " + other.error().message);
}

// Where the ELF file of the mapping begins: in a zip it is loaded from, at the nearest mapping
// below that begins with the magic.
std::uint64_t elf_start(const std::vector<Mapping>& mappings, const Mapping& mapping,
                        const ByteSource& source) {
  for (auto it = mappings.rbegin(); it != mappings.rend(); ++it) {
    if (it->start > mapping.start || !same_file(*it, mapping)) continue;
    if (begins_elf(source, it->offset)) return it->offset;
  }
  return 0;
}

// From the executable segment that the mapping shows a part of.
std::optional<std::uint64_t> load_bias(const ElfFile& file, const Mapping& mapping,
                                       std::uint64_t elf_offset) {
  if (mapping.offset < elf_offset) return std::nullopt;
  const std::uint64_t offset = mapping.offset - elf_offset;
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0) continue;
    const std::uint64_t begin = segment.offset.value & ~(kPage - 1);
    const std::uint64_t size = segment.filesz.value + (segment.offset.value - begin);
    if (!in_range(offset, begin, size)) continue;
    return mapping.start - (segment.vaddr.value + (offset - segment.offset.value));
  }
  return std::nullopt;
}

ProbeFile probes_of(const ElfFile& file) {
  if (auto indexed = read_index_probes(file)) return std::move(*indexed);
  ProbeFile probes = read_probes(file);
  if (probes.probes.empty()) probes.probes = std::move(read_legacy(file).file.probes);
  return probes;
}

}  // namespace

const MappedFiles::Source& MappedFiles::source(const Process& process,
                                               const std::vector<Mapping>& mappings,
                                               const Mapping& mapping) {
  const FileKey key{mapping.device, mapping.inode};
  const auto known = sources_.find(key);
  // What one process could not show another may.
  if (known != sources_.end() && known->second) return known->second;
  return sources_.insert_or_assign(key, open_mapped(process, mappings, mapping)).first->second;
}

const MappedFiles::Elf& MappedFiles::elf(const FileKey& key, std::uint64_t offset,
                                         const std::shared_ptr<const ByteSource>& source) {
  const auto known = elves_.find({key, offset});
  if (known != elves_.end()) return known->second;
  const auto part = offset == 0 ? source : std::make_shared<PartSource>(source, offset);
  auto file = ElfFile::open(part);
  Elf result = tl::unexpected(Error{});
  if (!file) {
    result = tl::unexpected(file.error());
  } else {
    ProbeFile probes = probes_of(*file);
    result = std::make_shared<const MappedElf>(MappedElf{part, std::move(*file), std::move(probes)});
  }
  return elves_.emplace(std::pair(key, offset), std::move(result)).first->second;
}

Result<LoadedFiles> MappedFiles::of(const Process& process) {
  const auto mappings = process.mappings();
  if (!mappings) return tl::unexpected(mappings.error());
  LoadedFiles result;
  std::set<std::tuple<FileKey, std::uint64_t, std::uint64_t>> seen;  // file, its start, bias
  std::set<FileKey> unread;
  for (const Mapping& mapping : *mappings) {
    if (!mapping.executable || mapping.inode == 0) continue;
    const FileKey key{mapping.device, mapping.inode};
    if (unread.contains(key)) continue;
    const auto give_up = [&](std::string reason) {
      unread.insert(key);
      result.unread.push_back({mapping.path, std::move(reason)});
    };
    const Source& whole = source(process, *mappings, mapping);
    if (!whole) {
      give_up(whole.error().message);
      continue;
    }
    const std::uint64_t start = elf_start(*mappings, mapping, **whole);
    if (!begins_elf(**whole, start)) continue;  // a file of code that is no ELF: a JIT's cache
    const Elf& read = elf(key, start, *whole);
    if (!read) {
      give_up(read.error().message);
      continue;
    }
    const auto bias = load_bias((*read)->file, mapping, start);
    if (!bias || !seen.emplace(key, start, *bias).second) continue;
    result.files.push_back({mapping.path, mapping.deleted, start, *bias, *read});
  }
  return result;
}

std::vector<LoadedProbe> read_loaded(const Process& process, const LoadedElf& loaded) {
  const ElfFile& file = loaded.elf->file;
  const std::uint64_t mask = file.header().is64 ? ~std::uint64_t{0} : 0xffffffffU;
  std::vector<LoadedProbe> result;
  for (const Probe& probe : loaded.elf->probes.probes) {
    LoadedProbe& now = result.emplace_back();
    if (probe.verdict == Verdict::dangling) {
      now.state.how = "dangling";
      continue;
    }
    now.address = (probe.site.value + loaded.bias) & mask;
    const ByteView bytes =
        file.bytes_at(probe.site, Size{std::max<std::uint64_t>(probe.facts.nop.size, 4)});
    const auto memory = process.memory(now.address, Size{bytes.size()});
    now.state = memory ? site_state(file.header(), probe.facts.nop, bytes, *memory)
                       : SiteState{Armed::unknown, memory.error().message};
    if (probe.semaphore.value == 0) continue;
    now.counter_address = (probe.semaphore.value + loaded.bias) & mask;
    if (const auto counter = process.memory(now.counter_address, kCounterBytes)) {
      now.counter = narrow<std::uint16_t>(load_uint(*counter, 0, 2, file.header().order));
    }
  }
  return result;
}

}  // namespace reprobe
