//! `starling services register`.

use anyhow::{Context, bail};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use starling_http_api::parse::{Context as ParseContext, Dialect, parse_definitions};
use starling_model::{Datacenter, NodeName};

use crate::client::address::host_and_port;
use crate::client::{ApiArgs, ApiError, Call, Client};
use crate::definition::{self, Document, field};
use crate::outcome::{Outcome, usage};
use crate::print;

/// Register services with the local agent, from files or from flags
///
/// All files are read and checked before anything is registered.
#[derive(Debug, clap::Args)]
pub(super) struct RegisterArgs {
    /// Definition files in HCL or JSON, - for standard input
    #[arg(value_name = "FILE", required_unless_present = "name", conflicts_with_all = ["name", "id", "kind", "address", "port", "socket", "tag", "meta", "tagged_address"])]
    files: Vec<String>,

    /// Name of the service, for one without a file
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Its ID, if it is not the name
    #[arg(long, value_name = "ID", requires = "name")]
    id: Option<String>,

    /// Its kind; proxies are registered from files, which have room for their settings
    #[arg(long, value_name = "KIND", requires = "name")]
    kind: Option<String>,

    /// Its address, if it is not the node's
    #[arg(long, value_name = "ADDR", requires = "name")]
    address: Option<String>,

    /// Its port
    #[arg(long, value_name = "PORT", requires = "name")]
    port: Option<u16>,

    /// The Unix socket on which it listens, in place of address and port
    #[arg(long, value_name = "PATH", requires = "name", conflicts_with_all = ["address", "port"])]
    socket: Option<String>,

    /// A tag; may be given again
    #[arg(long, value_name = "TAG", requires = "name")]
    tag: Vec<String>,

    /// Metadata, KEY=VALUE; may be given again
    #[arg(long, value_name = "KEY=VALUE", requires = "name")]
    meta: Vec<String>,

    /// Its address for callers of some kind, such as wan=192.0.2.1:80; may be given again
    #[arg(long, value_name = "TAG=ADDR", requires = "name")]
    tagged_address: Vec<String>,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// A service as it stands in a file.
pub(super) struct Defined {
    pub(super) id: String,
    name: String,
    body: Value,
    file: String,
}

pub(super) async fn run(client: &Client, args: RegisterArgs) -> anyhow::Result<Outcome> {
    if let Some(name) = &args.name {
        register(client, name, &from_flags(name, &args)?, "the flags").await?;
    }
    for service in from_files(client, &args.files).await? {
        register(client, &service.name, &service.body, &service.file).await?;
    }
    Ok(Outcome::Done)
}

async fn register(client: &Client, name: &str, body: &Value, origin: &str) -> anyhow::Result<()> {
    let call = Call::put("/v1/agent/service/register").json(body);
    client.send(call).await.with_context(|| format!("cannot register service {name:?} from {origin}"))?;
    print::line(&format!("Registered service: {name}"))
}

fn from_flags(name: &str, args: &RegisterArgs) -> anyhow::Result<Value> {
    let mut body = json!({"Name": name, "Tags": args.tag, "Meta": definition::pairs("--meta", &args.meta)?});
    let texts = [("ID", &args.id), ("Kind", &args.kind), ("Address", &args.address), ("SocketPath", &args.socket)];
    for (field, text) in texts {
        if let Some(text) = text {
            body[field] = text.as_str().into();
        }
    }
    if let Some(port) = args.port {
        body["Port"] = port.into();
    }
    for (tag, address) in definition::pairs("--tagged-address", &args.tagged_address)? {
        let text = address.as_str().unwrap_or_default();
        let (host, port) = host_and_port(text)
            .ok_or_else(|| usage(format!("--tagged-address {tag}={text}: {text:?} is not of the form ADDR:PORT")))?;
        body["TaggedAddresses"][tag] = json!({"Address": host, "Port": port.unwrap_or_default()});
    }
    Ok(body)
}

/// The services in the files, each checked by the rules by which the agent will check it.
pub(super) async fn from_files(client: &Client, files: &[String]) -> anyhow::Result<Vec<Defined>> {
    let mut all = Vec::new();
    if files.is_empty() {
        return Ok(all);
    }
    // The syntax first: it needs no agent.
    let documents = files.iter().map(|file| Document::read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let values = documents.iter().map(Document::value).collect::<anyhow::Result<Vec<_>>>()?;
    let context = context(client).await?;
    for (document, value) in documents.iter().zip(values) {
        all.extend(defined(document, value, &context)?);
    }
    Ok(all)
}

async fn context(client: &Client) -> anyhow::Result<ParseContext> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Agent {
        config: AgentConfig,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct AgentConfig {
        node_name: String,
        datacenter: String,
    }
    let own = match client.read(Call::get("/v1/agent/self")).await {
        // Who may write the service alone need not read the agent: its name makes no difference to what is registered.
        Err(ApiError::Refused { status: StatusCode::FORBIDDEN, .. }) => {
            let datacenters: Vec<Datacenter> = client.read(Call::get("/v1/catalog/datacenters")).await?;
            let datacenter = datacenters.into_iter().next().context("the agent knows no datacentre")?;
            return Ok(ParseContext::new(Dialect::File, NodeName::new("agent")?, datacenter));
        }
        own => own.context("cannot ask the agent for its name")?,
    };
    let Agent { config } = own;
    let node = NodeName::new(&config.node_name).context("the agent's node name is not valid")?;
    let datacenter = Datacenter::new(&config.datacenter).context("the agent's datacentre is not valid")?;
    Ok(ParseContext::new(Dialect::File, node, datacenter))
}

fn defined(document: &Document, value: Value, context: &ParseContext) -> anyhow::Result<Vec<Defined>> {
    let definitions =
        parse_definitions(&document.name, &document.bytes, context).map_err(|error| usage(error.to_string()))?;
    for notice in &definitions.notices {
        print::note(&format!("warning: {}: {notice}", document.name));
    }
    if !definitions.checks.is_empty() || !definitions.config_entries.is_empty() {
        print::note(&format!(
            "warning: {}: checks and config entries beside services are not registered by this command",
            document.name
        ));
    }
    if definitions.locality.is_some() {
        print::note(&format!(
            "warning: {}: locality is a setting of the agent's own, which this command does not change",
            document.name
        ));
    }
    if definitions.services.is_empty() {
        return Err(usage(format!("{}: there is no `service` in it", document.name)));
    }
    let bodies = bodies(value);
    if bodies.len() != definitions.services.len() {
        bail!("{}: its services cannot be told apart; give each a `service` of its own", document.name);
    }
    let pairs = definitions.services.into_iter().zip(bodies);
    let defined = pairs.map(|(registration, body)| Defined {
        id: registration.instance.key.id.to_string(),
        name: registration.instance.name.to_string(),
        body,
        file: document.name.clone(),
    });
    Ok(defined.collect())
}

/// The services of a file in the parser's order: `service`, then `services`.
fn bodies(value: Value) -> Vec<Value> {
    let Value::Object(fields) = value else { return Vec::new() };
    let mut bodies = Vec::new();
    for name in ["service", "services"] {
        match field(&fields, name) {
            Some(Value::Array(items)) => bodies.extend(items.iter().cloned()),
            Some(one @ Value::Object(_)) => bodies.push(one.clone()),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {}
        }
    }
    bodies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> anyhow::Result<Vec<Defined>> {
        let document = Document { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
        let context = ParseContext::new(Dialect::File, NodeName::new("n1").unwrap(), Datacenter::new("dc1").unwrap());
        let value = document.value()?;
        defined(&document, value, &context)
    }

    #[test]
    fn every_service_of_a_file_keeps_its_own_body() {
        let text = r#"
            service { name = "web" id = "web-1" port = 80 }
            services { name = "api" port = 81 }
            services { name = "db" port = 82 }
        "#;
        let services = read("all.hcl", text).unwrap();
        let seen: Vec<_> = services.iter().map(|s| (s.name.as_str(), s.id.as_str(), s.body["port"].clone())).collect();
        assert_eq!(seen, [("web", "web-1", json!(80)), ("api", "api", json!(81)), ("db", "db", json!(82))]);
    }

    #[test]
    fn a_wrong_field_is_told_with_file_and_path() {
        let error = read("web.hcl", "service { name = \"web\" port = 70000 }").err().expect("refused").to_string();
        assert!(error.starts_with("web.hcl: service") && error.contains("70000"), "{error}");
        let error = read("none.json", "{}").err().expect("refused").to_string();
        assert_eq!(error, "none.json: there is no `service` in it");
    }
}
