#include "libprobe/notes/descriptor.hpp"

#include <string>
#include <string_view>

namespace reprobe {

std::optional<Descriptor> decode_descriptor(ByteView bytes, unsigned word, std::endian order) {
  if (bytes.size() < smallest_descriptor(word)) return std::nullopt;
  const std::string_view strings = as_text(bytes.subspan(3 * std::size_t{word}));
  const auto provider_end = strings.find('\0');
  if (provider_end == std::string_view::npos) return std::nullopt;
  const auto name_end = strings.find('\0', provider_end + 1);
  if (name_end == std::string_view::npos) return std::nullopt;

  Descriptor result;
  result.fields.location = VirtAddr{load_uint(bytes, 0, word, order)};
  result.fields.base = VirtAddr{load_uint(bytes, word, word, order)};
  result.fields.semaphore = VirtAddr{load_uint(bytes, 2 * std::size_t{word}, word, order)};
  result.fields.provider = strings.substr(0, provider_end);
  result.fields.name = strings.substr(provider_end + 1, name_end - provider_end - 1);
  const std::string_view rest = strings.substr(name_end + 1);
  const auto arguments_end = rest.find('\0');
  result.arguments_terminated = arguments_end != std::string_view::npos;
  result.fields.arguments = rest.substr(0, arguments_end);
  result.used = result.arguments_terminated
                    ? 3 * std::uint64_t{word} + name_end + 1 + arguments_end + 1
                    : bytes.size();
  return result;
}

bool faultless_descriptor(ByteView bytes, unsigned word, std::endian order) {
  const auto read = decode_descriptor(bytes, word, order);
  return read && read->arguments_terminated && read->used == bytes.size() &&
         !read->fields.provider.empty() && !read->fields.name.empty();
}

}  // namespace reprobe
