//! See the library's `ring` module.

fn main() -> std::process::ExitCode {
    examples::command::main_of("ring")
}
