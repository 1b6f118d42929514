// fix --symbols and --undo-symbols.
#pragma once

#include "libprobe/error.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/rewrite/site_symbols.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"

namespace reprobe {

// Adds to the plan, which repairs the file, the symbols of what it gives. What cannot be done is
// among the plan's refusals. Errors: those of plan_site_symbols() and compose().
[[nodiscard]] Result<SiteSymbolsPlan> add_site_symbols(FixPlan& fix, const ElfFile& file);

// The `symbols` of the plan's JSON.
[[nodiscard]] Json symbols_json(const SiteSymbolsPlan& symbols);

// "; named 5 sites", "; 5 sites have their symbols" or "".
[[nodiscard]] std::string symbols_text(const SiteSymbolsPlan& symbols, bool dry_run);

// --undo-symbols: the exit code.
[[nodiscard]] Result<int> undo_site_symbols(const FixCommandOptions& options,
                                            const Terminal& terminal);

}  // namespace reprobe
