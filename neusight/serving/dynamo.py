"""A deployment with prompts and answers on devices apart as a graph of NVIDIA Dynamo for Kubernetes.

A ``DynamoGraphDeployment`` (``nvidia.com/v1alpha1``) has a service for each pool, whose workers take the options of
their engine (Dynamo 1.3, ``examples/backends/{vllm,sglang}/deploy/disagg.yaml``); caches travel by NIXL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from neusight.serving.deployment import Deployment

ENGINES: Mapping[str, tuple[str, str]] = {"vllm": ("vllm", "model"), "sglang": ("sglang", "model-path")}
"""Of engines whose workers take all limits as options: the module of Dynamo, and the option that names the model."""
ROLES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "vllm": {"prefill": ("--is-prefill-worker",), "decode": ("--is-decode-worker",)},
    "sglang": {
        role: ("--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl")
        for role in ("prefill", "decode")
    },
}
"""How a worker of each pool is told which it is."""


def graph_of(pools: Mapping[str, Deployment], options: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Lines of the YAML of both pools, by role: what they deploy, and the options of their engine as words."""
    backend, _ = ENGINES[pools["decode"].replica.engine.name]
    yield from ("apiVersion: nvidia.com/v1alpha1", "kind: DynamoGraphDeployment")
    yield from ("metadata:", f"  name: {backend}-disagg", "spec:", "  services:", "    Frontend:")
    yield from ("      componentType: frontend", "      replicas: 1", *_container(backend))
    for role, deployment in pools.items():
        yield from _service(role, deployment, options[role])


def _service(role: str, deployment: Deployment, options: Sequence[str]) -> Iterator[str]:
    replica, name = deployment.replica, deployment.replica.engine.name
    backend, model = ENGINES[name]
    devices = replica.cluster.per_node if replica.cluster else replica.plan.world
    yield from (f"    {role}:", "      componentType: worker", f"      subComponentType: {role}")
    yield from (f"      replicas: {deployment.setup.replicas}", "      resources:", "        limits:")
    yield f'          gpu: "{devices}"'
    if replica.cluster:
        yield from ("      multinode:", f"        nodeCount: {replica.cluster.nodes}")
    yield from _container(backend)
    yield f"          command: [python3, -m, dynamo.{backend}]"
    yield "          args:"
    words = (f"--{model}", replica.decoder.name, *ROLES[name][role], *options)
    yield from (f"            - {json.dumps(word)}" for word in words)


def _container(backend: str) -> Iterator[str]:
    yield from ("      extraPodSpec:", "        mainContainer:")
    yield f"          image: nvcr.io/nvidia/ai-dynamo/{backend}-runtime:${{VERSION}}"
