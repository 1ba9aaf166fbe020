//! Whether another process could be saved, as far as /proc shows it to us.

use std::fs;
use std::io;

use crate::declared::Declared;
use crate::files;
use crate::pages::Plan;
use crate::preflight;
use crate::smaps::Smaps;

/// Why the process `pid` could not be saved, a sentence each; none: nothing was found that speaks against it. Only the process itself can tell
/// everything: who waits in its sockets, which timers it has. `declared` are descriptors and addresses of that process. An error:
/// it is gone, or may not be looked into.
pub fn refusals_of(pid: u32, declared: &Declared) -> io::Result<Vec<String>> {
    let folder = format!("/proc/{pid}");
    let maps = fs::read(format!("{folder}/maps"))?;
    let smaps = fs::read(format!("{folder}/smaps"))?;
    let plan = Plan { memory_devices: Vec::new(), ..preflight::plan(declared) };
    let mut found: Vec<String> = files::refusals_of(pid, declared)?.iter().map(ToString::to_string).collect();
    let mut refusals = preflight::memory_refusals(&maps, &Smaps::parse(&smaps), &plan);
    refusals.extend(preflight::children_of(pid));
    found.extend(refusals.iter().map(ToString::to_string));
    let executable = fs::read_link(format!("{folder}/exe")).unwrap_or_default();
    if executable.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
        found.push(format!(
            "its executable, {}: a restored process is started from it; keep the file",
            executable.display()
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_and_processes_that_are_gone_are_told() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let told = refusals_of(std::process::id(), &Declared::new()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = format!("the child process {} (", child.id());
        assert!(told.iter().any(|sentence| sentence.starts_with(&expected)), "{told:?}");
        assert!(refusals_of(u32::MAX, &Declared::new()).is_err());
    }
}
