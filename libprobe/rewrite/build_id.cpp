#include "libprobe/rewrite/build_id.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

// Of the SHA-1 that linkers write; perf's cache takes no less than 16 bytes.
constexpr std::size_t kNewIdSize = 20;
constexpr std::size_t kIdInNote = 16;  // behind the header of three words and "GNU\0"

Result<Bytes> digest_of(const Bytes& output, std::size_t size) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  if (EVP_Digest(output.data(), output.size(), digest.data(), &length, EVP_sha256(), nullptr) !=
          1 ||
      length == 0) {
    return fail(ErrorCode::internal, "", "SHA-256 is not available");
  }
  Bytes id(size);
  for (std::size_t i = 0; i < size; ++i) id[i] = std::byte{digest[i % length]};
  return id;
}

// A note of owner GNU and type NT_GNU_BUILD_ID.
Bytes id_note(const Bytes& id, std::endian order) {
  Bytes note(kIdInNote + id.size());
  const std::string_view owner("GNU", 4);
  store_uint(note, 0, 4, order, owner.size());
  store_uint(note, 4, 4, order, id.size());
  store_uint(note, 8, 4, order, NT_GNU_BUILD_ID);
  std::ranges::copy(as_bytes(owner), note.begin() + 12);
  std::ranges::copy(id, note.begin() + kIdInNote);
  return note;
}

// The plan with a section for the id behind it.
Result<Plan> with_id_section(const Plan& plan, const ElfFile& file, const Bytes& id) {
  const auto after = ElfFile::open(planned_source(file.source(), plan));
  if (!after) return tl::unexpected(after.error());
  auto headers = SectionTable::of(*after);
  if (!headers) return tl::unexpected(headers.error());
  Section section;
  section.name = kBuildIdSection;
  section.type = SHT_NOTE;
  section.addralign = Size{4};
  Plan second;
  const auto added = headers->append(second, std::move(section), id_note(id, file.header().order),
                                     "a build-id", "the section of the build-id");
  if (!added) return tl::unexpected(added.error());
  if (auto done = headers->write(second); !done) return tl::unexpected(done.error());
  return compose(file.source(), plan, second);
}

Result<void> add_build_id(Plan& plan, const ElfFile& file) {
  if (file.section(kBuildIdSection) != nullptr) {
    return fail(ErrorCode::refused, std::string(kBuildIdSection),
                "the file's section for a build-id holds none", "link with -Wl,--build-id");
  }
  if (file.sections().empty()) {
    return fail(ErrorCode::refused, "e_shoff",
                "the file has no section headers, and without them no place for a build-id",
                "link with -Wl,--build-id");
  }
  const std::uint64_t header_size = file.header().is64 ? 64 : 52;
  const auto over_header = [&](const Section& section) {
    return holds_notes(section) && section.in_file && section.offset.value < header_size;
  };
  if (std::ranges::any_of(file.sections(), over_header)) {
    return fail(ErrorCode::refused, "", "notes lie over the ELF header, which would change");
  }
  const auto without = with_id_section(plan, file, Bytes(kNewIdSize));
  if (!without) return tl::unexpected(without.error());
  const auto output = apply(*without, file.source());
  if (!output) return tl::unexpected(output.error());
  const auto id = digest_of(*output, kNewIdSize);
  if (!id) return tl::unexpected(id.error());
  auto with = with_id_section(plan, file, *id);
  if (!with) return tl::unexpected(with.error());
  plan = std::move(*with);
  return {};
}

}  // namespace

Result<void> renew_build_id(Plan& plan, const ElfFile& file) {
  const auto range = file.build_id_range();
  if (!range) return add_build_id(plan, file);
  auto output = apply(plan, file.source());
  if (!output) return tl::unexpected(output.error());
  const auto at = static_cast<std::size_t>(range->first.value);
  const auto size = static_cast<std::size_t>(range->second.value);
  std::fill_n(output->begin() + static_cast<std::ptrdiff_t>(at), size, std::byte{0});
  auto id = digest_of(*output, size);
  if (!id) return tl::unexpected(id.error());
  return plan.replace(file.source(), range->first, std::move(*id),
                      "a build-id of the new contents");
}

}  // namespace reprobe
