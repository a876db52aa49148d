//! Bodies of the catalog's register and deregister endpoints: whole nodes from outside, without an agent.

use starling_catalog::{CheckWrite, Command, Operation, RecordOperation, Snapshot};
use starling_identity::Uuid;
use starling_model::{
    Check, CheckId, CheckStatus, CheckedService, InstanceId, InstanceKey, InstanceKind, Node, NodeName,
    OUTPUT_BYTES_MAX, Revision, ServiceInstance, ServiceName,
};

use super::check_definition::parse_definition;
use super::field::{FieldError, Fields};
use super::opaque::{Place, refuse_contradicted_protocols};
use super::service::{instance_of, other_gateway, parse_gateway, parse_plain, parse_proxy};

/// Reads a registration. Checks take service name and tags from the body, else from `snapshot`.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_register(mut fields: Fields<'_>, snapshot: &Snapshot) -> Result<Command, FieldError> {
    let name = required_node(&mut fields)?;
    check_datacenter(&mut fields)?;
    fields.tenancy()?;
    fields.ignored(&["WriteRequest", "Token", "PeerName", "CreateIndex", "ModifyIndex"]);
    fields.without_effect("Locality");
    let id = parse_node_id(&mut fields)?;
    let address = fields.address("Address")?;
    let tagged_addresses = fields.text_map("TaggedAddresses")?;
    let meta = fields.meta("NodeMeta")?;
    let (is_there, is_skipped) = (snapshot.node(&name).is_some(), fields.flag("SkipNodeUpdate")?);
    let node = |address| Some(Node { name: name.clone(), id, address, tagged_addresses, meta });
    let node = match address {
        _ if is_there && is_skipped => None,
        Some(address) => node(address),
        // Without an address the body speaks of what runs on a node that is already there, or whose own registration is to come.
        None if is_there => None,
        None if is_skipped => node(String::new()),
        None => return Err(fields.missing("Address", "must be given for a new node")),
    };
    let mut instances = Vec::new();
    if let Some(service) = fields.object("Service")? {
        let instance = parse_instance(service, &name)?;
        if let Some(proxy) = instance.sidecar() {
            refuse_contradicted_protocols("Service.Proxy", proxy, snapshot)?;
        }
        instances.push(instance);
    }
    let mut checks = Vec::new();
    if let Some(check) = fields.object("Check")? {
        checks.push(parse_catalog_check(check, &name, &instances, snapshot)?);
    }
    for item in fields.list("Checks")? {
        checks.push(parse_catalog_check(item.fields()?, &name, &instances, snapshot)?);
    }
    fields.finish()?;
    Ok(Command::Register { name, node, instances, checks })
}

/// Reads a deregistration: of a check, of a service, or of a whole node.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_deregister(mut fields: Fields<'_>) -> Result<Command, FieldError> {
    let node = required_node(&mut fields)?;
    check_datacenter(&mut fields)?;
    fields.tenancy()?;
    fields.ignored(&["WriteRequest", "Token", "Address", "PeerName"]);
    let service = fields.text("ServiceID")?;
    let check = fields.text("CheckID")?;
    let command = match (service, check) {
        (Some(id), None) => {
            let id = InstanceId::new(&id).map_err(|error| fields.error("ServiceID", error))?;
            Command::DeregisterInstance(InstanceKey { node, id })
        }
        (None, Some(id)) => {
            let id = CheckId::new(&id).map_err(|error| fields.error("CheckID", error))?;
            Command::DeregisterCheck(node, id)
        }
        (Some(_), Some(_)) => return Err(fields.error("CheckID", "contradicts ServiceID; give one of them")),
        (None, None) => Command::DeregisterNode(node),
    };
    fields.finish()?;
    Ok(command)
}

fn required_node(fields: &mut Fields<'_>) -> Result<NodeName, FieldError> {
    let name = fields.required_text("Node")?;
    NodeName::new(&name).map_err(|error| fields.error("Node", error))
}

fn check_datacenter(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    match fields.text("Datacenter")? {
        Some(name) if name != fields.context.datacenter.as_str() => {
            Err(fields.error("Datacenter", format!("no path to datacenter {name:?}")))
        }
        Some(_) | None => Ok(()),
    }
}

fn parse_instance(mut fields: Fields<'_>, node: &NodeName) -> Result<ServiceInstance, FieldError> {
    let name = fields.take_any(&["Service", "Name"])?.map(|field| field.text()).transpose()?;
    let name = name.filter(|name| !name.is_empty()).ok_or_else(|| fields.missing("Service", "must be given"))?;
    let name = ServiceName::new(&name).map_err(|error| fields.error("Service", error))?;
    let id = fields.text("ID")?.unwrap_or_else(|| name.to_string());
    let id = InstanceId::new(&id).map_err(|error| fields.error("ID", error))?;
    let kind = fields.text("Kind")?;
    let port = fields.port_or_zero("Port")?;
    let plain = parse_plain(&mut fields)?;
    fields.ignored(&["CreateIndex", "ModifyIndex", "PeerName", "ContentHash", "Datacenter"]);
    let native = match fields.object("Connect")? {
        Some(mut connect) => {
            let native = connect.flag("Native")?;
            connect.unsupported("SidecarService")?;
            connect.without_effect("PeerMeta");
            connect.finish()?;
            native
        }
        None => false,
    };
    let kind = match kind.as_deref() {
        None => {
            // The zero value of Consul's type is always written; it says that there is no proxy.
            fields.unsupported("Proxy")?;
            InstanceKind::Typical
        }
        Some("connect-proxy") => {
            let proxy = fields.object("Proxy")?.ok_or_else(|| fields.missing("Proxy", "must be given"))?;
            if port.is_none() {
                return Err(fields.missing("Port", "must be given for a proxy"));
            }
            InstanceKind::Sidecar(Box::new(parse_proxy(proxy, None)?))
        }
        Some("ingress-gateway") => {
            InstanceKind::IngressGateway(parse_gateway(fields.object("Proxy")?, Place::Gateway)?)
        }
        Some("terminating-gateway") => {
            InstanceKind::TerminatingGateway(parse_gateway(fields.object("Proxy")?, Place::ExitGateway)?)
        }
        Some(other) => {
            let (proxy, path) = (fields.object("Proxy")?, fields.path("Kind"));
            let kind = other_gateway(other, proxy, &path)?;
            kind.ok_or_else(|| FieldError::new(path, format!("{other:?} is no service kind")))?
        }
    };
    let key = InstanceKey { node: node.clone(), id };
    let mut instance = instance_of(key, name, kind, port, plain);
    instance.native = native;
    fields.finish()?;
    Ok(instance)
}

fn parse_catalog_check(
    mut fields: Fields<'_>,
    node: &NodeName,
    instances: &[ServiceInstance],
    snapshot: &Snapshot,
) -> Result<Check, FieldError> {
    if let Some(other) = fields.text("Node")?
        && other != node.as_str()
    {
        return Err(fields.error("Node", format!("is not {:?}, the node registered", node.as_str())));
    }
    let service_path = fields.path("ServiceID");
    let CheckWrite { mut check, of } = parse_check_write(fields, node.clone())?;
    check.service = of.map(|id| find_service(&service_path, id, node, instances, snapshot)).transpose()?;
    Ok(check)
}

/// Reads a check without its node.
fn parse_check_write(mut fields: Fields<'_>, node: NodeName) -> Result<CheckWrite, FieldError> {
    let name = fields.text("Name")?;
    let id = fields.text("CheckID")?.or_else(|| name.clone());
    let id = id.ok_or_else(|| fields.missing("CheckID", "must be given"))?;
    let id = CheckId::new(&id).map_err(|error| fields.error("CheckID", error))?;
    let status = match fields.text("Status")? {
        Some(text) => text.parse::<CheckStatus>().map_err(|error| fields.error("Status", error))?,
        None => CheckStatus::Critical,
    };
    let notes = fields.text("Notes")?.unwrap_or_default();
    let output = cut_output(fields.text("Output")?.unwrap_or_default());
    let of = fields.text("ServiceID")?.map(|text| InstanceId::new(&text));
    let of = of.transpose().map_err(|error| fields.error("ServiceID", error))?;
    let (definition, asks) = parse_definition(fields.object("Definition")?)?;
    let kind = fields.text("Type")?.unwrap_or_else(|| asks.to_owned());
    let interval = fields.text("Interval")?.unwrap_or_default();
    let timeout = fields.text("Timeout")?.unwrap_or_default();
    fields.ignored(&["ServiceName", "ServiceTags", "ExposedPort", "CreateIndex", "ModifyIndex", "PeerName"]);
    fields.tenancy()?;
    fields.finish()?;
    let (name, service) = (name.unwrap_or_default(), None);
    let check = Check { node, id, name, status, notes, output, service, kind, interval, timeout, definition };
    Ok(CheckWrite { check, of })
}

fn find_service(
    path: &str,
    id: InstanceId,
    node: &NodeName,
    instances: &[ServiceInstance],
    snapshot: &Snapshot,
) -> Result<CheckedService, FieldError> {
    let key = InstanceKey { node: node.clone(), id };
    let known = snapshot.instance(&key).map(|entry| &entry.value);
    match instances.iter().find(|instance| instance.key == key).or(known) {
        Some(instance) => Ok(CheckedService { id: key.id, name: instance.name.clone(), tags: instance.tags.clone() }),
        None => Err(FieldError::new(path, format!("{} is not registered on node {node}", key.id))),
    }
}

/// Reads an operation of a transaction on a node, an instance or a check: `kind` is Consul's word for which, and the name of the field
/// beside the verb that has the record.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_operation(mut fields: Fields<'_>, kind: &str) -> Result<Operation, FieldError> {
    let verb = fields.required_text("Verb")?;
    let verb_path = fields.path("Verb");
    let on_node = if kind == "Service" { Some(required_node(&mut fields)?) } else { None };
    let record = fields.object(kind)?.ok_or_else(|| fields.missing(kind, "must be given"))?;
    fields.tenancy()?;
    fields.finish()?;
    let index = |record: &mut Fields<'_>| record.whole_number("ModifyIndex").map(Revision);
    let mut record = record;
    let at = index(&mut record)?;
    let is_write = matches!(verb.as_str(), "set" | "cas");
    match (kind, on_node) {
        ("Service", Some(node)) if is_write => {
            let instance = parse_instance(record, &node)?;
            operation(&verb, &verb_path, Some(instance), None, at).map(Operation::Instance)
        }
        ("Service", Some(node)) => {
            let id = record.required_text("ID")?;
            let id = InstanceId::new(&id).map_err(|error| record.error("ID", error))?;
            operation(&verb, &verb_path, None, Some(InstanceKey { node, id }), at).map(Operation::Instance)
        }
        ("Check", _) => {
            let node = required_node(&mut record)?;
            if is_write {
                let write = parse_check_write(record, node)?;
                return operation(&verb, &verb_path, Some(write), None, at).map(Operation::Check);
            }
            let id = record.required_text("CheckID")?;
            let id = CheckId::new(&id).map_err(|error| record.error("CheckID", error))?;
            operation(&verb, &verb_path, None, Some((node, id)), at).map(Operation::Check)
        }
        _ => {
            let name = required_node(&mut record)?;
            if is_write {
                let node = parse_node(record, name)?;
                return operation(&verb, &verb_path, Some(node), None, at).map(Operation::Node);
            }
            operation(&verb, &verb_path, None, Some(name), at).map(Operation::Node)
        }
    }
}

fn operation<R, K>(
    verb: &str,
    path: &str,
    record: Option<R>,
    key: Option<K>,
    at: Revision,
) -> Result<RecordOperation<R, K>, FieldError> {
    match (verb, record, key) {
        ("set", Some(record), _) => Ok(RecordOperation::Set(record)),
        ("cas", Some(record), _) => Ok(RecordOperation::Cas(record, at)),
        ("get", _, Some(key)) => Ok(RecordOperation::Get(key)),
        ("delete", _, Some(key)) => Ok(RecordOperation::Delete(key)),
        ("delete-cas", _, Some(key)) => Ok(RecordOperation::DeleteCas(key, at)),
        _ => {
            Err(FieldError::new(path, format!("unknown verb {verb:?}; it is one of set, cas, get, delete, delete-cas")))
        }
    }
}

/// Reads a node as answers have it.
fn parse_node(mut fields: Fields<'_>, name: NodeName) -> Result<Node, FieldError> {
    check_datacenter(&mut fields)?;
    fields.tenancy()?;
    fields.ignored(&["CreateIndex", "PeerName"]);
    fields.without_effect("Locality");
    let id = parse_node_id(&mut fields)?;
    let address = fields.address("Address")?.ok_or_else(|| fields.missing("Address", "must be given"))?;
    let tagged_addresses = fields.text_map("TaggedAddresses")?;
    let meta = fields.meta("Meta")?;
    fields.finish()?;
    Ok(Node { name, id, address, tagged_addresses, meta })
}

fn parse_node_id(fields: &mut Fields<'_>) -> Result<String, FieldError> {
    let id = fields.text("ID")?.unwrap_or_default();
    if !id.is_empty() && id.to_ascii_lowercase().parse::<Uuid>().is_err() {
        return Err(fields.error("ID", format!("Bad node ID: {id:?} is no UUID")));
    }
    Ok(id)
}

/// Cuts a check's output to [`OUTPUT_BYTES_MAX`], between characters.
#[must_use]
pub fn cut_output(mut output: String) -> String {
    if output.len() > OUTPUT_BYTES_MAX {
        let end = (0..=OUTPUT_BYTES_MAX).rev().find(|at| output.is_char_boundary(*at)).unwrap_or(0);
        output.truncate(end);
    }
    output
}
