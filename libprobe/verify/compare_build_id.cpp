#include "libprobe/verify/compare_build_id.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <memory>
#include <optional>

#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

using Digest = std::array<unsigned char, EVP_MAX_MD_SIZE>;

// Of the file with zeros in [at, at + size). Nothing: it cannot be computed.
std::optional<Digest> digest_without(const ElfFile& file, std::uint64_t at, std::uint64_t size,
                                     unsigned& length) {
  const auto all =
      file.source().slice(FileOffset{0}, Size{file.source().size()}, "the result's bytes");
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     EVP_MD_CTX_free);
  if (!all || !hash) return std::nullopt;
  const auto begin = static_cast<std::size_t>(at);
  const Bytes zeros(static_cast<std::size_t>(size));
  bool good = EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1;
  for (const ByteView part :
       {all->first(begin), ByteView(zeros), all->subspan(begin + zeros.size())})
    good = good && EVP_DigestUpdate(hash.get(), part.data(), part.size()) == 1;
  Digest digest{};
  if (!good || EVP_DigestFinal_ex(hash.get(), digest.data(), &length) != 1 || length == 0)
    return std::nullopt;
  return digest;
}

}  // namespace

void compare_build_id(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out) {
  if (before.build_id() == after.build_id()) return;
  out.push_back(
      verify_finding("verify-build-id",
                     fmt::format("expected {}, found {}", before.build_id(), after.build_id())));
}

void check_new_build_id(const ElfFile& after, std::vector<Finding>& out) {
  const auto range = after.build_id_range();
  if (!range) {
    out.push_back(verify_finding("verify-build-id", "the result has no build-id"));
    return;
  }
  const auto id = after.source().slice(range->first, range->second, "the build-id");
  unsigned length = 0;
  const auto digest = digest_without(after, range->first.value, range->second.value, length);
  bool same = id && digest;
  for (std::size_t i = 0; same && i < id->size(); ++i)
    same = std::to_integer<unsigned>((*id)[i]) == (*digest)[i % length];
  if (same) return;
  out.push_back(verify_finding(
      "verify-build-id", fmt::format("the build-id at offset {:#x} is not the hash of the result",
                                     range->first.value)));
}

}  // namespace reprobe
