//! `starling snapshot save`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use serde_json::json;
use starling_backup::file::{Encoder, Header};
use tempfile::NamedTempFile;

use super::SaveArgs;
use super::notes;
use super::progress::Progress;
use super::reading::{Reading, Verified};
use crate::arguments::Surroundings;
use crate::client::{Call, Client};
use crate::offline::{Content, Source};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format};

pub(super) async fn run(args: SaveArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    if args.from.is_none() && args.etcd.is_given() {
        return Err(usage("--etcd-…: name the etcd by --from etcd://HOST:PORT; without it, a server is asked"));
    }
    let mut file = Unfinished::beside(&args.file)?;
    match &args.from {
        None => of_server(&surroundings.client(&args.api)?, &mut file).await?,
        Some(place) => {
            let way = place.way(&args.etcd, &surroundings.environment)?;
            // Servers may run on an etcd: what is read of it is as of one revision all the same.
            of_store(&Source::open(&way).await?.read().await?, &mut file)?;
        }
    }
    let Verified { header, summary, checksum } = file.finish()?;
    let note = notes::lacks_key(&summary).then_some(notes::KEY_NOT_HERE);
    match args.output.format {
        Format::Json => print::json(&json!({
            "file": args.file,
            "revision": header.revision,
            "records": summary.records,
            "bytes": summary.bytes,
            "sha256": checksum.to_string(),
            "sealed_ca_key": summary.has_sealed_key(),
            "notes": note.iter().collect::<Vec<_>>(),
        }))?,
        Format::Table => {
            let (revision, file, records) = (header.revision, args.file.display(), summary.records);
            print::line(&format!("Saved revision {revision} to {file}: {records} records, sha256 {checksum}"))?;
            note.map_or(Ok(()), |note| print::line(&format!("Note: {note}")))?;
        }
    }
    Ok(Outcome::Done)
}

async fn of_server(client: &Client, file: &mut Unfinished) -> anyhow::Result<()> {
    let progress = Progress::of_bytes("saving", None);
    let mut length = 0;
    let take = |piece: &[u8]| {
        length += piece.len() as u64;
        progress.at(length);
        file.write(piece)
    };
    client.download(Call::get("/v1/snapshot"), take).await.context("cannot save a snapshot")?;
    progress.done();
    Ok(())
}

fn of_store(content: &Content, file: &mut Unfinished) -> anyhow::Result<()> {
    let saved_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let program = env!("CARGO_PKG_VERSION").to_owned();
    let header = Header { store: content.store.clone(), revision: content.revision.0, saved_at, program };
    let mut piece = Vec::new();
    let mut encoder = Encoder::begin(&header, &mut piece)?;
    for record in content.records() {
        encoder.record(&record, &mut piece)?;
        file.write(&piece)?;
        piece.clear();
    }
    encoder.finish(&mut piece);
    file.write(&piece)
}

/// A snapshot on its way to the disk, under another name, verified as it is written. Dropping it removes it.
struct Unfinished {
    path: PathBuf,
    directory: PathBuf,
    file: NamedTempFile,
    reading: Reading,
}

impl Unfinished {
    /// In the directory of `path`, readable by its owner alone.
    fn beside(path: &Path) -> anyhow::Result<Self> {
        ensure!(!path.is_dir(), usage(format!("{} is a directory: name a file", path.display())));
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".starling-snapshot-").tempfile_in(parent);
        let file = file.map_err(|error| usage(format!("cannot write in {}: {error}", parent.display())))?;
        Ok(Self { path: path.to_owned(), directory: parent.to_owned(), file, reading: Reading::default() })
    }

    fn write(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        self.reading.push(piece, drop).context("what arrives is no good snapshot")?;
        self.file.write_all(piece).with_context(|| format!("writing {}", self.path.display()))
    }

    /// Puts it in place, durably, if it is whole.
    fn finish(self) -> anyhow::Result<Verified> {
        let Self { path, directory, file, reading } = self;
        let verified = reading.finish().context("what arrived is no good snapshot")?;
        let writing = || format!("writing {}", path.display());
        file.as_file().sync_all().with_context(writing)?;
        file.persist(&path).with_context(writing)?;
        File::open(&directory).and_then(|directory| directory.sync_all()).with_context(writing)?;
        Ok(verified)
    }
}
