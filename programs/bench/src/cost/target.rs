//! Another mesh, which is pointed at: a URL that leads through it, and one that leads to the same application without it.

use anyhow::{Context, bail};
use http::{HeaderName, HeaderValue};

use crate::load::{Load, Message, Peer, Protocol, TlsArgs, header, parse_url};

/// The part of the command line that is about another mesh.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TargetArgs {
    /// Measure another mesh in place of one of this program's: its URL, and the same application without it
    #[arg(
        long,
        value_name = "url=URL,baseline=URL",
        value_parser = target,
        conflicts_with_all = ["proxy", "modes", "policies", "access_log", "tracing", "mtls"]
    )]
    target: Option<Target>,
    /// A header of each request to --target; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header, requires = "target")]
    headers: Vec<(HeaderName, HeaderValue)>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    /// Through the mesh.
    url: String,
    /// Without it.
    baseline: String,
}

fn target(text: &str) -> Result<Target, String> {
    let of =
        |name: &str| text.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=').map(str::to_owned));
    match (of("url"), of("baseline")) {
        (Some(url), Some(baseline)) if text.split(',').count() == 2 => Ok(Target { url, baseline }),
        _ => Err("write url=http://HOST:PORT/PATH,baseline=http://HOST:PORT/PATH".to_owned()),
    }
}

impl TargetArgs {
    /// Whether there is one.
    pub(super) fn is_given(&self) -> bool {
        self.target.is_some()
    }

    /// What is spoken with it; HTTP/1.1 unless its URL says otherwise.
    pub(super) fn protocol(&self) -> Protocol {
        let url = self.target.as_ref().map(|target| target.url.as_str());
        url.and_then(|url| parse_url(url, false).ok()).map_or(Protocol::Http1, |(protocol, _)| protocol)
    }

    /// Refuses what does not go together.
    ///
    /// # Errors
    /// With what does.
    pub(super) fn verify(&self) -> anyhow::Result<()> {
        let Some(Target { url, baseline }) = &self.target else {
            if !self.headers.is_empty() {
                bail!("--header is for a --target");
            }
            if self.tls.is_given() {
                bail!("--ca, --insecure, --cert and --key are for a --target with https://, grpcs:// or tls://");
            }
            return Ok(());
        };
        let ((one, _), (other, _)) = (parse_url(url, false)?, parse_url(baseline, false)?);
        if one != other {
            bail!("{url} and {baseline} are of different protocols, whose difference would be taken for the mesh's");
        }
        Ok(())
    }

    /// Requests through the mesh, and without it; `None` if there is none.
    ///
    /// # Errors
    /// When a host has no address, or files of TLS cannot be read.
    pub(super) async fn loads(&self, payload: u32) -> anyhow::Result<Option<[Load; 2]>> {
        let Some(Target { url, baseline }) = &self.target else { return Ok(None) };
        Ok(Some([self.load(url, payload).await?, self.load(baseline, payload).await?]))
    }

    async fn load(&self, url: &str, payload: u32) -> anyhow::Result<Load> {
        let (protocol, uri) = parse_url(url, false)?;
        let peer = Peer::of(&uri, protocol, &self.tls).await?;
        let payload = usize::try_from(payload).context("the payload is larger than memory")?;
        if protocol == Protocol::Tcp && payload == 0 {
            bail!("{url}: an echo over TCP takes a --payload above 0");
        }
        Ok(Load::new(peer, protocol, Message::new(protocol, uri, self.headers.clone(), payload)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: TargetArgs,
        // What they conflict with.
        #[arg(long)]
        proxy: Option<String>,
        #[arg(long)]
        modes: Option<String>,
        #[arg(long)]
        policies: Option<String>,
        #[arg(long)]
        access_log: bool,
        #[arg(long)]
        tracing: bool,
        #[arg(long)]
        mtls: Option<String>,
    }

    fn read(line: &[&str]) -> Result<TargetArgs, String> {
        let words = std::iter::once(&"x").chain(line);
        let args = Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())?;
        args.verify().map(|()| args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_target_has_both_urls_of_one_protocol() {
        let args = read(&["--target", "url=https://a:1/x,baseline=http://b:2/y", "--insecure"]).unwrap();
        let expected = Target { url: "https://a:1/x".to_owned(), baseline: "http://b:2/y".to_owned() };
        assert_eq!((args.target.as_ref(), args.protocol()), (Some(&expected), Protocol::Http1));
        let grpc = read(&["--target", "url=grpc://a:1/x,baseline=grpc://b:2/y"]).unwrap();
        assert_eq!(grpc.protocol(), Protocol::Grpc);
        for (wrong, said) in [
            ("http://a", "baseline=http"),
            ("url=http://a", "baseline=http"),
            ("url=http://a,baseline=http://b,c=d", "baseline=http"),
            ("url=http://a/,baseline=grpc://b:1/", "different protocols"),
            ("url=ftp://a/,baseline=http://b/", "write http://"),
        ] {
            assert!(read(&["--target", wrong]).unwrap_err().contains(said), "{wrong}");
        }
    }

    #[test]
    fn headers_and_tls_are_for_a_target() {
        assert!(read(&["--header", "host: shop"]).is_err());
        assert!(read(&["--insecure"]).unwrap_err().contains("--target"));
        let args = read(&["--target", "url=http://a/,baseline=http://b/", "-H", "host: shop"]).unwrap();
        assert_eq!(args.headers[0].1, "shop");
    }
}
