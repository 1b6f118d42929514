#include "tool/thin_archive.hpp"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

#include "libprobe/elf/open_file.hpp"
#include "tool/archive.hpp"
#include "tool/elf_input.hpp"

namespace reprobe {
namespace {

// GNU ar: "!<thin>\n", then headers of 60 bytes. Only "/" and "/SYM64/" (the symbol index) and "//"
// (the names) have contents; "/17" is the name at 17 in "//", which "/\n" ends.
constexpr std::string_view kMagic = "!<thin>\n";
constexpr std::size_t kHeader = 60, kName = 16, kSizeAt = 48, kSizeWidth = 10, kEndAt = 58;

std::optional<std::size_t> decimal(std::string_view text) {
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc()) return std::nullopt;
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  return rest.find_first_not_of(' ') == std::string_view::npos ? std::optional(value)
                                                               : std::nullopt;
}

// "y.o/" as it stands in a header, or "/17" looked up among the long names.
std::optional<std::string> name_of(std::string_view field, std::string_view names) {
  if (!field.starts_with('/')) return std::string(field.substr(0, field.find('/')));
  const auto at = decimal(field.substr(1));
  if (!at || *at >= names.size()) return std::nullopt;
  const std::size_t end = names.find("/\n", *at);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(names.substr(*at, end - *at));
}

void visit_member(const std::string& archive, const std::string& name,
                  const InputHandlers& handlers) {
  const std::string shown = fmt::format("{}({})", archive, name);
  handlers.on_visit(shown);
  const std::string path = (std::filesystem::path(archive).parent_path() / name).string();
  auto source = handlers.keeps_sources ? map_file(path) : open_file(path);
  if (!source) return handlers.on_error(shown, source.error());
  const Size head_size{std::min(kHeadSize, (*source)->size())};
  const auto head = (*source)->slice(FileOffset{0}, head_size, "the first bytes");
  if (!head) return handlers.on_error(shown, head.error());
  if (file_kind(*head) == FileKind::elf) handlers.on_elf(shown, std::move(*source));
}

}  // namespace

bool is_thin_archive(ByteView head) { return as_text(head).starts_with(kMagic); }

void for_each_thin_member(const std::string& path, ByteView archive,
                          const InputHandlers& handlers) {
  const std::string_view text = as_text(archive);
  const auto damaged = [&](std::size_t at) {
    handlers.on_error(path, Error{ErrorCode::unreadable, "",
                                  fmt::format("the thin archive is damaged at {:#x}", at), ""});
  };
  std::string_view names;
  for (std::size_t at = kMagic.size(); at < text.size();) {
    const std::string_view header = text.substr(at, kHeader);
    if (header.size() < kHeader || header.substr(kEndAt) != "`\n") return damaged(at);
    const auto size = decimal(header.substr(kSizeAt, kSizeWidth));
    if (!size) return damaged(at);
    const std::string_view field = header.substr(0, kName);
    at += kHeader;
    if (field.starts_with("/ ") || field.starts_with("// ") || field.starts_with("/SYM64/")) {
      if (*size > text.size() - at) return damaged(at);
      if (field.starts_with("//")) names = text.substr(at, *size);
      at += *size + *size % 2;  // members begin at even offsets
      continue;
    }
    const auto name = name_of(field, names);
    if (!name || name->empty()) return damaged(at - kHeader);
    visit_member(path, *name, handlers);
  }
}

}  // namespace reprobe
