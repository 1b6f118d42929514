#include "mapped_files.hpp"

#include <dlfcn.h>
#include <link.h>

namespace reprobe::test {

std::vector<MappedFile> mapped_files() {
  std::vector<MappedFile> files;
  const auto add = [](dl_phdr_info* info, std::size_t, void* data) {
    const bool program = info->dlpi_name[0] == '\0';
    static_cast<std::vector<MappedFile>*>(data)->push_back(
        {program ? "/proc/self/exe" : info->dlpi_name, info->dlpi_addr});
    return 0;
  };
  dl_iterate_phdr(add, &files);
  return files;
}

std::optional<std::uintptr_t> exported_symbol_at(std::uintptr_t address) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || info.dli_saddr == nullptr)
    return std::nullopt;
  return reinterpret_cast<std::uintptr_t>(info.dli_saddr);
}

}  // namespace reprobe::test
