#include "tool/link_inputs.hpp"

#include <optional>
#include <utility>

#include "tool/elf_input.hpp"
#include "tool/inputs.hpp"

namespace reprobe {

Result<LinkObjects> read_link_objects(const std::vector<std::string>& paths) {
  LinkObjects objects;
  std::optional<Error> failure;
  InputHandlers handlers;
  handlers.keeps_sources = true;
  handlers.on_visit = [](const std::string&) {};
  handlers.on_error = [&](const std::string& path, const Error& error) {
    if (failure) return;
    failure = error;
    failure->message = path + ": " + error.message;
  };
  handlers.on_elf = [&](const std::string& path, std::shared_ptr<const ByteSource> source) {
    auto object = open_elf(std::move(source));
    if (!object) return handlers.on_error(path, object.error());
    objects.add(path, std::move(*object));
  };
  for (const std::string& path : paths) for_each_elf(path, false, handlers);
  if (failure) return tl::unexpected(*failure);
  return objects;
}

}  // namespace reprobe
