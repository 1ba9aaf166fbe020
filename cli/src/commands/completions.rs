//! `stillwire install-completions`: man pages and completions of shells, generated from the arguments.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use serde::Serialize;

use super::say;
use crate::arguments::Arguments;
use crate::error::CliError;
use crate::exit::Exit;

/// The name under which people call this program.
const NAME: &str = "stillwire";

pub(crate) const LONG_ABOUT: &str = "\
Install completions for bash, zsh and fish, and the man pages, where the shells and man(1) of this user look for them: below \
$XDG_DATA_HOME, which is ~/.local/share if nothing else is set. It needs no privileges, and replaces files of an earlier version.

zsh reads its folder only if fpath names it, and man(1) only if MANPATH names it or PATH has ~/.local/bin. The last line of the output says what to add for zsh.

With --prefix, files go where packages have them: PREFIX/share/man/man1, PREFIX/share/bash-completion/completions, \
PREFIX/share/zsh/site-functions, PREFIX/share/fish/vendor_completions.d.";

#[derive(Debug, Args)]
pub(crate) struct CompletionArguments {
    /// Install for everybody below this folder, such as /usr/local, instead of for this user
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix: Option<PathBuf>,
}

/// The folders that files go to.
struct Folders {
    man: PathBuf,
    bash: PathBuf,
    zsh: PathBuf,
    fish: PathBuf,
}

impl Folders {
    fn below(prefix: &Path) -> Folders {
        let share = prefix.join("share");
        Folders {
            man: share.join("man/man1"),
            bash: share.join("bash-completion/completions"),
            zsh: share.join("zsh/site-functions"),
            fish: share.join("fish/vendor_completions.d"),
        }
    }

    /// Of this user. `variable` reads the environment.
    ///
    /// # Errors
    /// Neither XDG_DATA_HOME nor HOME is set to a usable folder.
    fn of_user(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Folders, CliError> {
        // The specification has relative paths ignored.
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
        let Some(data) = data else { return Err(CliError::NoHome) };
        Ok(Folders {
            man: data.join("man/man1"),
            bash: data.join("bash-completion/completions"),
            zsh: data.join("zsh/site-functions"),
            fish: data.join("fish/vendor_completions.d"),
        })
    }
}

#[derive(Serialize)]
struct Report {
    files: Vec<PathBuf>,
}

/// Writes all files, and prints their folders.
pub(crate) fn install(arguments: &CompletionArguments, json: bool) -> Result<Exit, CliError> {
    let folders = match &arguments.prefix {
        Some(prefix) => Folders::below(prefix),
        None => Folders::of_user(|name| std::env::var_os(name).map(PathBuf::from))?,
    };
    let mut files = man_pages(&folders.man)?;
    for (shell, folder, name) in [
        (Shell::Bash, &folders.bash, NAME.to_owned()),
        (Shell::Zsh, &folders.zsh, format!("_{NAME}")),
        (Shell::Fish, &folders.fish, format!("{NAME}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), NAME, &mut text);
        files.push(write(folder, &name, &text)?);
    }
    if json {
        super::print_json(&Report { files })?;
        return Ok(Exit::Success);
    }
    for file in &files {
        say!("{}", file.display())?;
    }
    if arguments.prefix.is_none() {
        super::print_message(format_args!(
            "bash and fish read their completions in new shells; for zsh add to ~/.zshrc, before compinit: fpath+=({})",
            folders.zsh.display()
        ));
    }
    Ok(Exit::Success)
}

/// A page for the program and one for each command: stillwire(1), stillwire-run(1), ...
fn man_pages(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let mut root = Arguments::command();
    root.build();
    let mut files = Vec::new();
    pages_of(&root, NAME, &mut |name, page| {
        files.push(write(folder, &format!("{name}.1"), page)?);
        Ok(())
    })?;
    Ok(files)
}

/// Takes a page: its name, and its text in roff.
type Take<'a> = dyn FnMut(&str, &[u8]) -> Result<(), CliError> + 'a;

fn pages_of(command: &clap::Command, name: &str, page: &mut Take<'_>) -> Result<(), CliError> {
    let mut text = Vec::new();
    // A command that is built calls itself stillwire-run, which man(1) finds as `man stillwire run`, too.
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    page(name, &text)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages_of(below, &format!("{name}-{}", below.get_name()), page)?;
    }
    Ok(())
}

fn write(folder: &Path, name: &str, text: &[u8]) -> Result<PathBuf, CliError> {
    let path = folder.join(name);
    let failed = |error: io::Error| CliError::NotWritten { path: path.clone(), error };
    fs::create_dir_all(folder).map_err(failed)?;
    fs::write(&path, text).map_err(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_user_go_below_the_data_folder() {
        let folders = |data: Option<&str>, home: Option<&str>| {
            let variable = |name: &str| if name == "HOME" { home } else { data }.map(PathBuf::from);
            Folders::of_user(variable).map(|folders| folders.man).ok()
        };
        assert_eq!(folders(Some("/data"), Some("/home/a")), Some("/data/man/man1".into()));
        assert_eq!(folders(Some("relative"), Some("/home/a")), Some("/home/a/.local/share/man/man1".into()));
        assert_eq!(folders(None, Some("/home/a")), Some("/home/a/.local/share/man/man1".into()));
        assert_eq!(folders(None, None), None);
    }

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = man_pages(folder.path()).expect("pages");
        let commands = Arguments::command();
        let names = commands.get_subcommands().filter(|command| !command.is_hide_set());
        let names: Vec<_> = names.map(|command| command.get_name().to_owned()).collect();
        for name in names {
            let page = folder.path().join(format!("stillwire-{name}.1"));
            assert!(files.contains(&page), "no page of {name}");
        }
        let run = fs::read_to_string(folder.path().join("stillwire-run.1")).expect("a page");
        assert!(run.contains("ckpt\\-every") && run.starts_with(".ie"), "{run}");
    }
}
