//! `consul validate`: judges files as the agent does that would be started with them.

use std::path::PathBuf;
use std::process::ExitCode;

use super::agent::ConfigFormat;
use super::configuration::Configuration;
use crate::print;
use crate::role::reload::Sources;

/// Say whether an agent would start with these files; exits with 1 if not
#[derive(Debug, clap::Args)]
pub(super) struct ValidateArgs {
    /// Files, and directories of files
    #[arg(value_name = "FILE_OR_DIRECTORY", required = true)]
    paths: Vec<PathBuf>,

    /// The form of the files, whatever they are called
    #[arg(long, value_enum, value_name = "FORMAT")]
    config_format: Option<ConfigFormat>,

    /// Say nothing of files that are valid
    #[arg(long)]
    quiet: bool,
}

pub(super) fn run(args: ValidateArgs) -> anyhow::Result<ExitCode> {
    let (directories, files) = args.paths.into_iter().partition(|path| path.is_dir());
    let format = args.config_format.map(Into::into);
    let sources = Sources { files, directories, fragments: Vec::new(), format, has_settings: true };
    match (Configuration { sources, flags: None }).judged() {
        Ok(_) if args.quiet => {}
        Ok(judged) => {
            judged.said.iter().for_each(|said| print::note(said));
            print::line("Configuration is valid!")?;
        }
        Err(error) => {
            print::note(&format!("error: the configuration is not valid: {error:#}"));
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
