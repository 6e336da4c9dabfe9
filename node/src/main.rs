//! The `tsnode` command.

fn main() -> std::process::ExitCode {
    tsnode::cli::main()
}
