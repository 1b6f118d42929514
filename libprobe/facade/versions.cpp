#include <Zydis/Zydis.h>
#include <capstone/capstone.h>
#include <fmt/format.h>
#include <openssl/crypto.h>

#ifdef REPROBE_LIEF
#include <LIEF/version.h>
#endif

#include "reprobe/reprobe.hpp"

namespace reprobe {

std::vector<std::pair<std::string, std::string>> library_versions() {
  int major = 0, minor = 0;
  cs_version(&major, &minor);
  const ZyanU64 zydis = ZydisGetVersion();
  std::vector<std::pair<std::string, std::string>> out{
      {"Capstone", fmt::format("{}.{}", major, minor)},
      {"Zydis", fmt::format("{}.{}.{}", ZYDIS_VERSION_MAJOR(zydis), ZYDIS_VERSION_MINOR(zydis),
                            ZYDIS_VERSION_PATCH(zydis))}};
#ifdef REPROBE_LIEF
  std::string lief = LIEF_VERSION;  // Debian's ends in a hyphen
  while (lief.ends_with('-')) lief.pop_back();
  out.emplace_back("LIEF", std::move(lief));
#endif
  out.emplace_back("OpenSSL", OpenSSL_version(OPENSSL_VERSION_STRING));
  return out;
}

}  // namespace reprobe
