//! Discovery chains: what becomes of a call by the entries that are written.

use std::sync::Arc;

use starling_catalog::Subject;
use starling_model::{Datacenter, Protocol};

use crate::answer::forms::{ChainOf, Overrides};
use crate::answer::{Answer, forms};
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let service = call.service_name()?;
    let facts = api.catalog.authority();
    let datacenter: Datacenter = match call.query.text("compile-dc") {
        None => facts.datacenter.clone(),
        Some(name) => name.parse().map_err(|error| ApiError::bad_request(format!("compile-dc: {error}")))?,
    };
    let overrides = if call.body.is_empty() { Overrides::default() } else { overrides(&call, &facts)? };
    let of = ChainOf { service: &service, datacenter: &datacenter, trust_domain: &facts.trust_domain, overrides };
    let now = forms::chain(&api.catalog.snapshot(), &of);
    // Whoever changes what is followed changes an entry of one of these.
    let mut subjects: Vec<_> = now.services.into_iter().map(Subject::Routing).collect();
    subjects.push(Subject::ProxyDefaults);
    let view = view(&api, &mut call, &subjects).await?;
    Ok(Answer::json(forms::chain(&view.snapshot, &of).form).read_at(view.index))
}

fn overrides(call: &Call, facts: &crate::ports::MeshFacts) -> Result<Overrides, ApiError> {
    let context = Call::context(facts);
    let mut fields = call.fields(&context)?;
    let protocol = match fields.text("OverrideProtocol")?.filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(text.parse::<Protocol>().map_err(|error| fields.error("OverrideProtocol", error))?),
    };
    let connect_timeout = fields.duration("OverrideConnectTimeout")?.filter(|timeout| !timeout.is_zero());
    // There is one datacentre, and so no gateway between two.
    fields.ignored(&["OverrideMeshGateway"]);
    fields.finish()?;
    Ok(Overrides { protocol, connect_timeout })
}
