#include "libprobe/rewrite/build_id.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

namespace reprobe {

Result<void> renew_build_id(Plan& plan, const ElfFile& file) {
  const auto range = file.build_id_range();
  if (!range) {
    return fail(ErrorCode::refused, "", "the file has no build-id to replace",
                "link with -Wl,--build-id");
  }
  auto output = apply(plan, file.source());
  if (!output) return tl::unexpected(output.error());
  const auto at = static_cast<std::size_t>(range->first.value);
  const auto size = static_cast<std::size_t>(range->second.value);
  std::fill_n(output->begin() + static_cast<std::ptrdiff_t>(at), size, std::byte{0});

  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  if (EVP_Digest(output->data(), output->size(), digest.data(), &length, EVP_sha256(), nullptr) !=
          1 ||
      length == 0) {
    return fail(ErrorCode::internal, "", "SHA-256 is not available");
  }
  Bytes id(size);
  for (std::size_t i = 0; i < size; ++i) id[i] = std::byte{digest[i % length]};
  return plan.replace(file.source(), range->first, std::move(id), "a build-id of the new contents");
}

}  // namespace reprobe
