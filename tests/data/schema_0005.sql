BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0005');
CREATE TABLE attachment (
	what VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	text TEXT NOT NULL, 
	CONSTRAINT pk_attachment PRIMARY KEY (what, "key")
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	actor VARCHAR(200) NOT NULL, 
	token_id INTEGER, 
	action VARCHAR(64) NOT NULL, 
	detail JSON NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id), 
	CONSTRAINT fk_audit_token_id_token FOREIGN KEY(token_id) REFERENCES token (id)
);
CREATE TABLE best (
	task_id INTEGER NOT NULL, 
	scope VARCHAR(16) NOT NULL, 
	scope_value TEXT NOT NULL, 
	config JSON NOT NULL, 
	config_digest VARCHAR(64) NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	median_s DOUBLE NOT NULL, 
	low_s DOUBLE NOT NULL, 
	high_s DOUBLE NOT NULL, 
	samples INTEGER NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	CONSTRAINT pk_best PRIMARY KEY (task_id, scope, scope_value), 
	CONSTRAINT ck_best_scope CHECK (scope IN ('device', 'model', 'target')), 
	CONSTRAINT fk_best_task_id_task FOREIGN KEY(task_id) REFERENCES task (id)
);
INSERT INTO "best" VALUES(1,'device','1','{"x":2,"y":0}','1e0db2a6b104bebb','confirm',2.25000000000000026367e-03,2.24325000000000045197e-03,0.00225675,9,1.79518599292399144177e+09);
INSERT INTO "best" VALUES(1,'model','Model A','{"x":2,"y":0}','1e0db2a6b104bebb','confirm',2.25000000000000026367e-03,2.24325000000000045197e-03,0.00225675,9,1.79518599292898035045e+09);
INSERT INTO "best" VALUES(1,'target','','{"x":2,"y":0}','1e0db2a6b104bebb','confirm',2.25000000000000026367e-03,2.24325000000000045197e-03,0.00225675,9,1.79518599293099188809e+09);
INSERT INTO "best" VALUES(2,'device','2','{"x":4,"y":0}','835a7fb4b3b572b3','search',4.23611111111111150046e-03,4.22340277777777817896e-03,4.24881944444444395458e-03,9,1.79518599285700321201e+09);
INSERT INTO "best" VALUES(2,'model','Model B','{"x":4,"y":0}','835a7fb4b3b572b3','search',4.23611111111111150046e-03,4.22340277777777817896e-03,4.24881944444444395458e-03,9,1.79518599285998058318e+09);
INSERT INTO "best" VALUES(2,'target','','{"x":4,"y":0}','835a7fb4b3b572b3','search',4.23611111111111150046e-03,4.22340277777777817896e-03,4.24881944444444395458e-03,9,1.7951859928669810295e+09);
INSERT INTO "best" VALUES(3,'device','1','{}','44136fa355b3678a','search',3.24444444444444432887e-03,3.23471111111111112035e-03,3.25417777777777710371e-03,9,1.79518599288999438287e+09);
INSERT INTO "best" VALUES(3,'model','Model A','{}','44136fa355b3678a','search',3.24444444444444432887e-03,3.23471111111111112035e-03,3.25417777777777710371e-03,9,1.79518599289301180842e+09);
INSERT INTO "best" VALUES(3,'target','','{}','44136fa355b3678a','search',3.24444444444444432887e-03,3.23471111111111112035e-03,3.25417777777777710371e-03,9,1.79518599290101814273e+09);
INSERT INTO "best" VALUES(4,'model','v100','{"auto_unroll_max_step":512,"tile_f":[-1,1,1,1],"tile_n":[-1,1,1,1],"tile_rc":[-1,1,1],"tile_x":[-1,1,64,1],"unroll_explicit":0}','0556849e03cfc804','search',1.08460418000000009819e-02,1.08460418000000009819e-02,1.08460418000000009819e-02,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(4,'target','','{"auto_unroll_max_step":512,"tile_f":[-1,1,1,1],"tile_n":[-1,1,1,1],"tile_rc":[-1,1,1],"tile_x":[-1,1,64,1],"unroll_explicit":0}','0556849e03cfc804','search',1.08460418000000009819e-02,1.08460418000000009819e-02,1.08460418000000009819e-02,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(5,'model','v100','{"auto_unroll_max_step":1500,"tile_b":[-1,1,1,1],"tile_rc":[-1,10],"tile_x":[-1,3,24,1],"tile_y":[-1,1,4,8],"unroll_explicit":1}','d8fb8f613e081faa','search',2.40731958250497041522e-04,2.40731958250497041522e-04,2.40731958250497041522e-04,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(5,'target','','{"auto_unroll_max_step":1500,"tile_b":[-1,1,1,1],"tile_rc":[-1,10],"tile_x":[-1,3,24,1],"tile_y":[-1,1,4,8],"unroll_explicit":1}','d8fb8f613e081faa','search',2.40731958250497041522e-04,2.40731958250497041522e-04,2.40731958250497041522e-04,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(7,'model','v100','{"auto_unroll_max_step":64,"fuse_yx":0,"tile_f":[1,1,1,1],"tile_n":[1,1,1,1],"tile_rc":[512,1,1],"tile_x":[16256,1,1,1],"tile_y":[1,1,1,1],"unroll_explicit":0}','eeb1cd80840bbb6f','search',1.21195876608187150941e-03,1.21195876608187150941e-03,1.21195876608187150941e-03,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(7,'target','','{"auto_unroll_max_step":64,"fuse_yx":0,"tile_f":[1,1,1,1],"tile_n":[1,1,1,1],"tile_rc":[512,1,1],"tile_x":[16256,1,1,1],"tile_y":[1,1,1,1],"unroll_explicit":0}','eeb1cd80840bbb6f','search',1.21195876608187150941e-03,1.21195876608187150941e-03,1.21195876608187150941e-03,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(8,'target','','{}','44136fa355b3678a','search',1.0e-06,1.0e-06,1.0e-06,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(9,'target','','{"tile_ic":[1,64],"tile_oc":[2,32],"tile_ow":[8,7],"unroll_kw":true}','c2e04fde2fb5036c','search',1.07447810603368638297e-04,1.07447810603368638297e-04,1.07447810603368638297e-04,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(10,'model','v100','{"auto_unroll_max_step":128,"tile_b":[-1,1,1,1],"tile_rc":[-1,44],"tile_x":[-1,2,24,1],"tile_y":[-1,2,8,2],"unroll_explicit":1}','9bf46fbe7c4e9cb2','search',1.03719172272727280098e-04,1.03719172272727280098e-04,1.03719172272727280098e-04,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(10,'target','','{"auto_unroll_max_step":128,"tile_b":[-1,1,1,1],"tile_rc":[-1,44],"tile_x":[-1,2,24,1],"tile_y":[-1,2,8,2],"unroll_explicit":1}','9bf46fbe7c4e9cb2','search',1.03719172272727280098e-04,1.03719172272727280098e-04,1.03719172272727280098e-04,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(11,'model','v100','{"auto_unroll_max_step":512,"tile_f":[-1,2,4,2],"tile_rc":[-1,1],"tile_rx":[-1,3],"tile_ry":[-1,3],"tile_x":[-1,1,13,1],"tile_y":[-1,1,6,3],"unroll_explicit":1}','1d51232a6efba097','search',3.16710266055045882183e-04,3.16710266055045882183e-04,3.16710266055045882183e-04,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(11,'target','','{"auto_unroll_max_step":512,"tile_f":[-1,2,4,2],"tile_rc":[-1,1],"tile_rx":[-1,3],"tile_ry":[-1,3],"tile_x":[-1,1,13,1],"tile_y":[-1,1,6,3],"unroll_explicit":1}','1d51232a6efba097','search',3.16710266055045882183e-04,3.16710266055045882183e-04,3.16710266055045882183e-04,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(12,'target','','{"tile_ic":[1,3],"tile_oc":[2,32],"tile_ow":[14,8],"unroll_kw":false}','4310a1f89d31dcab','search',9.59349866436605370687e-05,9.59349866436605370687e-05,9.59349866436605370687e-05,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(14,'model','v100','{"auto_unroll_max_step":1500,"tile_f":[-1,1,4,8],"tile_rc":[-1,1],"tile_rx":[-1,1],"tile_ry":[-1,3],"tile_x":[-1,1,27,1],"tile_y":[-1,6,1,1],"unroll_explicit":0}','007e40c97f6f0e6c','search',9.48539196217494e-05,9.48539196217494e-05,9.48539196217494e-05,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(14,'target','','{"auto_unroll_max_step":1500,"tile_f":[-1,1,4,8],"tile_rc":[-1,1],"tile_rx":[-1,1],"tile_ry":[-1,3],"tile_x":[-1,1,27,1],"tile_y":[-1,6,1,1],"unroll_explicit":0}','007e40c97f6f0e6c','search',9.48539196217494e-05,9.48539196217494e-05,9.48539196217494e-05,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(15,'model','v100','{"auto_unroll_max_step":32,"tile_k":[-1,5],"tile_x":[-1,2,2],"tile_y":[-1,32,2],"unroll_explicit":1}','04e8b4ba90ae436d','search',3.13236948649354060613e-06,3.13236948649354060613e-06,3.13236948649354060613e-06,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(15,'target','','{"auto_unroll_max_step":32,"tile_k":[-1,5],"tile_x":[-1,2,2],"tile_y":[-1,32,2],"unroll_explicit":1}','04e8b4ba90ae436d','search',3.13236948649354060613e-06,3.13236948649354060613e-06,3.13236948649354060613e-06,1,1.79519597656700325011e+09);
INSERT INTO "best" VALUES(1,'device','5','{"x":7,"y":0}','81947f2f2a630329','search',1.27777777777777763572e-03,1.27394444444444429956e-03,1.28161111111111075504e-03,9,1.79534243394199323658e+09);
INSERT INTO "best" VALUES(1,'model','Model C','{"x":1,"y":0}','a80c49b28bf855a8','search',2.61111111111111179189e-03,2.60327777777777857534e-03,2.61894444444444500844e-03,9,1.79534243390300726891e+09);
INSERT INTO "best" VALUES(1,'model','Model D','{"x":7,"y":0}','81947f2f2a630329','search',1.27777777777777763572e-03,1.27394444444444429956e-03,1.28161111111111075504e-03,9,1.79534243394199323658e+09);
CREATE TABLE cost_model (
	id INTEGER NOT NULL, 
	op VARCHAR(128) NOT NULL, 
	target_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	train_s DOUBLE NOT NULL, 
	records BIGINT NOT NULL, 
	workloads INTEGER NOT NULL, 
	held_out INTEGER NOT NULL, 
	pairs BIGINT NOT NULL, 
	accuracy DOUBLE NOT NULL, 
	sigma_log DOUBLE NOT NULL, 
	columns TEXT NOT NULL, 
	trees BLOB NOT NULL, 
	digest VARCHAR(64) NOT NULL, evaluation JSON, 
	CONSTRAINT pk_cost_model PRIMARY KEY (id), 
	CONSTRAINT fk_cost_model_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT uq_cost_model_op_target_id_version UNIQUE (op, target_id, version)
);
CREATE TABLE device (
	id INTEGER NOT NULL, 
	identity VARCHAR(200) NOT NULL, 
	slot VARCHAR(200) NOT NULL, 
	model TEXT NOT NULL, 
	target_id INTEGER NOT NULL, 
	target JSON NOT NULL, 
	fingerprint JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	CONSTRAINT pk_device PRIMARY KEY (id), 
	CONSTRAINT fk_device_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT uq_device_identity UNIQUE (identity)
);
INSERT INTO "device" VALUES(1,'host-a/cpu:0-1','cpu:0-1','Model A',1,'{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}','{}',1.7951859927519946098e+09,1.7951859927519946098e+09);
INSERT INTO "device" VALUES(2,'host-b/cpu:0-1','cpu:0-1','Model B',1,'{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}','{}',1.79518599275601816169e+09,1.79518599275601816169e+09);
INSERT INTO "device" VALUES(3,'model:c15823084f2a1cd8077760bec33b15fb','','v100',2,'{"kind":"cuda","keys":["cuda","gpu"],"model":"v100"}','{}',1.7951959765589966774e+09,1.7951959765589966774e+09);
INSERT INTO "device" VALUES(4,'model:a53516f48e8853bfe510cfc1431ba01a','','titanx',2,'{"kind":"cuda","keys":["cuda","gpu"],"model":"titanx"}','{}',1.7951959765589966774e+09,1.7951959765589966774e+09);
INSERT INTO "device" VALUES(5,'host-c/cpu:0','cpu:0-1','Model D',1,'{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}','{}',1.79534243373700523379e+09,1.79534243391298508644e+09);
CREATE TABLE environment (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	body JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_environment PRIMARY KEY (id), 
	CONSTRAINT uq_environment_digest UNIQUE (digest)
);
INSERT INTO "environment" VALUES(1,'44136fa355b3678a1146ad16f7e8649e','{}',1.79518599278398013115e+09);
CREATE TABLE event (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	run_id INTEGER, 
	job_id INTEGER, 
	worker_id INTEGER, 
	detail JSON NOT NULL, 
	CONSTRAINT pk_event PRIMARY KEY (id), 
	CONSTRAINT fk_event_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_event_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_event_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id)
);
INSERT INTO "event" VALUES(1,1.79518599273300457005e+09,'created',1,NULL,NULL,'{"trials":12}');
INSERT INTO "event" VALUES(2,1.7951859927530004978e+09,'registered',NULL,NULL,1,'{"name":"worker","devices":["host-a/cpu:0-1"]}');
INSERT INTO "event" VALUES(3,1.79518599275601816169e+09,'registered',NULL,NULL,2,'{"name":"second","devices":["host-b/cpu:0-1"]}');
INSERT INTO "event" VALUES(4,1.79518599276000118255e+09,'enqueued',1,1,NULL,'{"phase":"search","entries":6}');
INSERT INTO "event" VALUES(5,1.79518599277500820162e+09,'leased',1,1,1,'{"lease":1,"device":"host-a/cpu:0-1"}');
INSERT INTO "event" VALUES(6,1.79518599282401204115e+09,'done',1,1,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(7,1.79518599282900094982e+09,'enqueued',1,2,NULL,'{"phase":"search","entries":5}');
INSERT INTO "event" VALUES(8,1.79518599283998465544e+09,'leased',1,2,2,'{"lease":2,"device":"host-b/cpu:0-1"}');
INSERT INTO "event" VALUES(9,1.79518599286798691749e+09,'done',1,2,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(10,1.79518599287498736381e+09,'enqueued',1,3,NULL,'{"phase":"search","entries":1}');
INSERT INTO "event" VALUES(11,1.79518599288198804856e+09,'leased',1,3,1,'{"lease":3,"device":"host-a/cpu:0-1"}');
INSERT INTO "event" VALUES(12,1.79518599290600728993e+09,'done',1,3,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(13,1.79518599290801882748e+09,'enqueued',1,4,NULL,'{"phase":"confirm","entries":3}');
INSERT INTO "event" VALUES(14,1.79518599291401362415e+09,'leased',1,4,1,'{"lease":4,"device":"host-a/cpu:0-1"}');
INSERT INTO "event" VALUES(15,1.79518599293099188809e+09,'done',1,4,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(16,1.79518599293300366403e+09,'enqueued',1,5,NULL,'{"phase":"search","entries":1}');
INSERT INTO "event" VALUES(17,1.7951859929389982224e+09,'enqueued',1,6,NULL,'{"phase":"search","entries":1}');
INSERT INTO "event" VALUES(18,1.79534243363400840762e+09,'created',2,NULL,NULL,'{"trials":24}');
INSERT INTO "event" VALUES(19,1.7953424336490154266e+09,'created',3,NULL,NULL,'{"trials":24}');
INSERT INTO "event" VALUES(20,1.79534243365899324421e+09,'created',4,NULL,NULL,'{"trials":24}');
INSERT INTO "event" VALUES(21,1.79534243367001724242e+09,'created',5,NULL,NULL,'{"trials":24}');
INSERT INTO "event" VALUES(22,1.79534243373801112174e+09,'registered',NULL,NULL,3,'{"name":"worker","devices":["host-c/cpu:0"]}');
INSERT INTO "event" VALUES(23,1.79534243379300975803e+09,'enqueued',3,7,NULL,'{"phase":"search","entries":2}');
INSERT INTO "event" VALUES(24,1.79534243385698056216e+09,'leased',3,7,3,'{"lease":5,"device":"host-c/cpu:0"}');
INSERT INTO "event" VALUES(25,1.79534243391201949122e+09,'done',3,7,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(26,1.79534243391399097439e+09,'registered',NULL,NULL,4,'{"name":"worker","devices":["host-c/cpu:0"]}');
INSERT INTO "event" VALUES(27,1.79534243392598032952e+09,'enqueued',3,8,NULL,'{"phase":"search","entries":2}');
INSERT INTO "event" VALUES(28,1.79534243393298101427e+09,'leased',3,8,4,'{"lease":6,"device":"host-c/cpu:0"}');
INSERT INTO "event" VALUES(29,1.79534243394798779481e+09,'done',3,8,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(30,1.79534243395100545888e+09,'enqueued',3,9,NULL,'{"phase":"search","entries":1}');
CREATE TABLE history (
	task_id INTEGER NOT NULL, 
	variant_id INTEGER NOT NULL, 
	model TEXT NOT NULL, 
	mean_s DOUBLE NOT NULL, 
	config_digest VARCHAR(64) NOT NULL, 
	config JSON NOT NULL, 
	CONSTRAINT pk_history PRIMARY KEY (task_id, variant_id, model), 
	CONSTRAINT fk_history_task_id_task FOREIGN KEY(task_id) REFERENCES task (id), 
	CONSTRAINT fk_history_variant_id_target_variant FOREIGN KEY(variant_id) REFERENCES target_variant (id)
);
INSERT INTO "history" VALUES(1,1,'Model A',1.49999999999999981438e-03,'e53b9014483c32b6','{"x":5,"y":0}');
INSERT INTO "history" VALUES(2,1,'Model B',4.23611111111111063309e-03,'835a7fb4b3b572b3','{"x":4,"y":0}');
INSERT INTO "history" VALUES(3,1,'Model A',3.24444444444444432887e-03,'44136fa355b3678a','{}');
INSERT INTO "history" VALUES(4,2,'v100',1.08460418000000009819e-02,'0556849e03cfc804','{"auto_unroll_max_step":512,"tile_f":[-1,1,1,1],"tile_n":[-1,1,1,1],"tile_rc":[-1,1,1],"tile_x":[-1,1,64,1],"unroll_explicit":0}');
INSERT INTO "history" VALUES(5,2,'v100',2.40731958250497041522e-04,'d8fb8f613e081faa','{"auto_unroll_max_step":1500,"tile_b":[-1,1,1,1],"tile_rc":[-1,10],"tile_x":[-1,3,24,1],"tile_y":[-1,1,4,8],"unroll_explicit":1}');
INSERT INTO "history" VALUES(6,3,'',2.25e-05,'d8e58abf2a9a4cba','{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}');
INSERT INTO "history" VALUES(7,2,'v100',1.21195876608187150941e-03,'eeb1cd80840bbb6f','{"auto_unroll_max_step":64,"fuse_yx":0,"tile_f":[1,1,1,1],"tile_n":[1,1,1,1],"tile_rc":[512,1,1],"tile_x":[16256,1,1,1],"tile_y":[1,1,1,1],"unroll_explicit":0}');
INSERT INTO "history" VALUES(8,4,'',1.0e-06,'44136fa355b3678a','{}');
INSERT INTO "history" VALUES(9,3,'',1.07447810603368638297e-04,'c2e04fde2fb5036c','{"tile_ic":[1,64],"tile_oc":[2,32],"tile_ow":[8,7],"unroll_kw":true}');
INSERT INTO "history" VALUES(10,2,'v100',1.03719172272727280098e-04,'9bf46fbe7c4e9cb2','{"auto_unroll_max_step":128,"tile_b":[-1,1,1,1],"tile_rc":[-1,44],"tile_x":[-1,2,24,1],"tile_y":[-1,2,8,2],"unroll_explicit":1}');
INSERT INTO "history" VALUES(11,2,'v100',3.16710266055045882183e-04,'1d51232a6efba097','{"auto_unroll_max_step":512,"tile_f":[-1,2,4,2],"tile_rc":[-1,1],"tile_rx":[-1,3],"tile_ry":[-1,3],"tile_x":[-1,1,13,1],"tile_y":[-1,1,6,3],"unroll_explicit":1}');
INSERT INTO "history" VALUES(12,3,'',9.59349866436605370687e-05,'4310a1f89d31dcab','{"tile_ic":[1,3],"tile_oc":[2,32],"tile_ow":[14,8],"unroll_kw":false}');
INSERT INTO "history" VALUES(14,2,'v100',9.48539196217494e-05,'007e40c97f6f0e6c','{"auto_unroll_max_step":1500,"tile_f":[-1,1,4,8],"tile_rc":[-1,1],"tile_rx":[-1,1],"tile_ry":[-1,3],"tile_x":[-1,1,27,1],"tile_y":[-1,6,1,1],"unroll_explicit":0}');
INSERT INTO "history" VALUES(15,2,'v100',3.13236948649354060613e-06,'04e8b4ba90ae436d','{"auto_unroll_max_step":32,"tile_k":[-1,5],"tile_x":[-1,2,2],"tile_y":[-1,32,2],"unroll_explicit":1}');
INSERT INTO "history" VALUES(1,1,'Model C',2.61111111111111179189e-03,'a80c49b28bf855a8','{"x":1,"y":0}');
INSERT INTO "history" VALUES(1,1,'Model D',1.27777777777777763572e-03,'81947f2f2a630329','{"x":7,"y":0}');
CREATE TABLE job (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	policy_id INTEGER NOT NULL, 
	parent_id INTEGER, 
	phase VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	priority INTEGER NOT NULL, 
	attempts INTEGER NOT NULL, 
	fence BIGINT NOT NULL, 
	seed BIGINT NOT NULL, 
	needs TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	available_at DOUBLE NOT NULL, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, turn DOUBLE DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_job PRIMARY KEY (id), 
	CONSTRAINT ck_job_phase CHECK (phase IN ('search', 'confirm', 'reference')), 
	CONSTRAINT ck_job_state CHECK (state IN ('queued', 'leased', 'done', 'quarantined', 'cancelled')), 
	CONSTRAINT fk_job_parent_id_job FOREIGN KEY(parent_id) REFERENCES job (id), 
	CONSTRAINT fk_job_policy_id_timing_policy FOREIGN KEY(policy_id) REFERENCES timing_policy (id), 
	CONSTRAINT fk_job_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_job_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT fk_job_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id)
);
INSERT INTO "job" VALUES(1,1,1,1,1,NULL,'search','done',10,0,1,1,'{"op":"filter","versions":{"filter_tiled.cpu":"1"}}','',1.79518599276000118255e+09,1.79518599276000118255e+09,1.79518599282401204115e+09,0.0);
INSERT INTO "job" VALUES(2,1,1,1,1,NULL,'search','done',10,0,1,1,'{"op":"filter","versions":{"filter_plain.cpu":"1"}}','',1.79518599282900094982e+09,1.79518599282900094982e+09,1.7951859928669810295e+09,0.0);
INSERT INTO "job" VALUES(3,1,1,1,1,NULL,'search','done',10,0,1,1,'{"op":"filter","versions":{"filter_vendor.cpu":"1"}}','',1.79518599286899280548e+09,1.79518599286899280548e+09,1.79518599290600728993e+09,0.0);
INSERT INTO "job" VALUES(4,1,1,1,1,NULL,'confirm','done',10,0,1,1,'{"op":"filter","versions":{"filter_tiled.cpu":"1"}}','',1.79518599290701293949e+09,1.79518599290701293949e+09,1.79518599293099188809e+09,0.0);
INSERT INTO "job" VALUES(5,1,1,1,1,NULL,'search','quarantined',10,0,0,1,'{"op":"filter","versions":{"filter_plain.cpu":"1"}}','',1.79518599293199777608e+09,1.79518599293199777608e+09,NULL,0.0);
INSERT INTO "job" VALUES(6,1,1,1,1,NULL,'search','quarantined',10,0,0,1,'{"op":"filter","versions":{"filter_plain.cpu":"1"}}','',1.7951859929389982224e+09,1.7951859929389982224e+09,NULL,0.0);
INSERT INTO "job" VALUES(7,3,1,1,1,NULL,'search','done',-1000,0,1,1,'{"op":"filter","versions":{"filter_tiled.cpu":"1"}}','',1.79534243378198599813e+09,1.79534243378198599813e+09,1.79534243391101360322e+09,0.0);
INSERT INTO "job" VALUES(8,3,1,1,1,NULL,'search','done',-1000,0,1,1,'{"op":"filter","versions":{"filter_tiled.cpu":"1"}}','',1.79534243392501473429e+09,1.79534243392501473429e+09,1.79534243394299888613e+09,0.0);
INSERT INTO "job" VALUES(9,3,1,1,1,NULL,'search','queued',10,0,0,1,'{"op":"filter","versions":{"filter_tiled.cpu":"1"}}','',1.79534243394999957089e+09,1.79534243394999957089e+09,NULL,0.0);
CREATE TABLE job_entry (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	entry INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	config JSON NOT NULL, 
	config_digest VARCHAR(64) NOT NULL, 
	best_s DOUBLE, 
	state VARCHAR(16) NOT NULL, 
	CONSTRAINT pk_job_entry PRIMARY KEY (id), 
	CONSTRAINT ck_job_entry_state CHECK (state IN ('pending', 'done')), 
	CONSTRAINT fk_job_entry_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_job_entry_task_id_task FOREIGN KEY(task_id) REFERENCES task (id), 
	CONSTRAINT uq_job_entry_job_id_entry UNIQUE (job_id, entry)
);
INSERT INTO "job_entry" VALUES(1,1,0,1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(2,1,1,1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'done');
INSERT INTO "job_entry" VALUES(3,1,2,1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'done');
INSERT INTO "job_entry" VALUES(4,1,3,1,'{"x":3,"y":0}','2d0f0569552143db',NULL,'done');
INSERT INTO "job_entry" VALUES(5,1,4,1,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'done');
INSERT INTO "job_entry" VALUES(6,1,5,1,'{"x":5,"y":0}','e53b9014483c32b6',NULL,'done');
INSERT INTO "job_entry" VALUES(7,2,0,2,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(8,2,1,2,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'done');
INSERT INTO "job_entry" VALUES(9,2,2,2,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'done');
INSERT INTO "job_entry" VALUES(10,2,3,2,'{"x":3,"y":0}','2d0f0569552143db',NULL,'done');
INSERT INTO "job_entry" VALUES(11,2,4,2,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'done');
INSERT INTO "job_entry" VALUES(12,3,0,3,'{}','44136fa355b3678a',NULL,'done');
INSERT INTO "job_entry" VALUES(13,4,0,1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(14,4,1,1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'done');
INSERT INTO "job_entry" VALUES(15,4,2,1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'done');
INSERT INTO "job_entry" VALUES(16,5,0,2,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(17,6,0,2,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(18,7,0,1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(19,7,1,1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'done');
INSERT INTO "job_entry" VALUES(20,8,0,1,'{"x":6,"y":0}','bc2bf182ce2e41f4',NULL,'done');
INSERT INTO "job_entry" VALUES(21,8,1,1,'{"x":7,"y":0}','81947f2f2a630329',NULL,'done');
INSERT INTO "job_entry" VALUES(22,9,0,1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'pending');
CREATE TABLE lease (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	worker_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	token BIGINT NOT NULL, 
	timing BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	end_reason VARCHAR(32), 
	CONSTRAINT pk_lease PRIMARY KEY (id), 
	CONSTRAINT fk_lease_device_id_device FOREIGN KEY(device_id) REFERENCES device (id), 
	CONSTRAINT fk_lease_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_lease_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id)
);
INSERT INTO "lease" VALUES(1,1,1,1,1,0,1.79518599277500820162e+09,1.79518605278301453592e+09,1.79518599282300615315e+09,'done');
INSERT INTO "lease" VALUES(2,2,2,2,1,0,1.79518599283998465544e+09,1.79518605284601950652e+09,1.7951859928669810295e+09,'done');
INSERT INTO "lease" VALUES(3,3,1,1,1,0,1.79518599288198804856e+09,1.79518605288299369811e+09,1.79518599290600728993e+09,'done');
INSERT INTO "lease" VALUES(4,4,1,1,1,0,1.79518599291401362415e+09,1.79518605291598510741e+09,1.79518599293099188809e+09,'done');
INSERT INTO "lease" VALUES(5,7,3,5,1,0,1.79534243385601496693e+09,1.79534249387399911885e+09,1.79534243391000771523e+09,'done');
INSERT INTO "lease" VALUES(6,8,4,5,1,0,1.79534243393298101427e+09,1.79534249393499255181e+09,1.79534243394299888613e+09,'done');
CREATE TABLE pause (
	id INTEGER NOT NULL, 
	device_id INTEGER, 
	target_id INTEGER, 
	reason TEXT NOT NULL, 
	starts_at DOUBLE NOT NULL, 
	ends_at DOUBLE, 
	CONSTRAINT pk_pause PRIMARY KEY (id), 
	CONSTRAINT ck_pause_place CHECK ((device_id IS NULL) <> (target_id IS NULL)), 
	CONSTRAINT fk_pause_device_id_device FOREIGN KEY(device_id) REFERENCES device (id), 
	CONSTRAINT fk_pause_target_id_target FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE purge (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	reason TEXT NOT NULL, 
	criteria JSON NOT NULL, 
	records BIGINT NOT NULL, 
	CONSTRAINT pk_purge PRIMARY KEY (id)
);
INSERT INTO "purge" VALUES(1,1.79519597656998038288e+09,'the fan had failed','{"since":1535377557.3893585,"until":1535377557.8893585}',1);
CREATE TABLE "record" (
	id INTEGER NOT NULL, 
	run_id INTEGER, 
	task_id INTEGER NOT NULL, 
	job_id INTEGER, 
	entry INTEGER, 
	lease_id INTEGER, 
	worker_id INTEGER, 
	device_id INTEGER, 
	environment_id INTEGER, 
	policy_id INTEGER, 
	phase VARCHAR(16) NOT NULL, 
	session VARCHAR(200) NOT NULL, 
	seed BIGINT, 
	config JSON NOT NULL, 
	config_digest VARCHAR(64) NOT NULL, 
	error VARCHAR(32), 
	message TEXT NOT NULL, 
	samples_s JSON NOT NULL, 
	median_s DOUBLE, 
	mean_s DOUBLE, 
	prepare_s DOUBLE, 
	build_s DOUBLE NOT NULL, 
	check_s DOUBLE NOT NULL, 
	run_s DOUBLE NOT NULL, 
	code_digest VARCHAR(128) NOT NULL, 
	measured_at DOUBLE NOT NULL, 
	recorded_at DOUBLE NOT NULL, 
	identity BLOB NOT NULL, 
	source VARCHAR(200) NOT NULL, 
	variant_id INTEGER NOT NULL, 
	origin_run BIGINT, 
	origin_worker VARCHAR(200), 
	extra TEXT, 
	CONSTRAINT pk_record PRIMARY KEY (id), 
	CONSTRAINT ck_record_error CHECK (error IN ('invalid', 'instantiation', 'compile', 'runtime', 'crash', 'oom', 'wrong_answer', 'out_of_bounds', 'implausible', 'build_timeout', 'run_timeout', 'lost', 'cancelled') OR error IS NULL), 
	CONSTRAINT ck_record_phase CHECK (phase IN ('search', 'confirm', 'reference')), 
	CONSTRAINT ck_record_cost CHECK ((error IS NULL) = (median_s IS NOT NULL)), 
	CONSTRAINT fk_record_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_record_task_id_task FOREIGN KEY(task_id) REFERENCES task (id), 
	CONSTRAINT fk_record_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_record_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id), 
	CONSTRAINT ck_record_cost CHECK ((error IS NULL) = (median_s IS NOT NULL)), 
	CONSTRAINT ck_record_error CHECK (error IN ('invalid', 'instantiation', 'compile', 'runtime', 'crash', 'oom', 'wrong_answer', 'out_of_bounds', 'implausible', 'build_timeout', 'run_timeout', 'lost', 'cancelled') OR error IS NULL), 
	CONSTRAINT ck_record_phase CHECK (phase IN ('search', 'confirm', 'reference')), 
	CONSTRAINT fk_record_lease_id_lease FOREIGN KEY(lease_id) REFERENCES lease (id), 
	CONSTRAINT fk_record_environment_id_environment FOREIGN KEY(environment_id) REFERENCES environment (id), 
	CONSTRAINT uq_record_job_id_entry UNIQUE (job_id, entry), 
	CONSTRAINT fk_record_policy_id_timing_policy FOREIGN KEY(policy_id) REFERENCES timing_policy (id), 
	CONSTRAINT fk_record_device_id_device FOREIGN KEY(device_id) REFERENCES device (id), 
	CONSTRAINT uq_record_identity UNIQUE (identity), 
	CONSTRAINT fk_record_variant_id_target_variant FOREIGN KEY(variant_id) REFERENCES target_variant (id), 
	CONSTRAINT ck_record_origin CHECK ((job_id IS NULL) = (run_id IS NULL) AND (job_id IS NULL) = (entry IS NULL))
);
INSERT INTO "record" VALUES(1,1,1,1,0,1,1,1,1,1,'search','s1',1,'{"x":0,"y":0}','cc978be5ab093d2b','compile','it did not work','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1.79518599279001498224e+09,1.79518599279001498224e+09,X'9E961291475EA21E081F247A1BCB92F6','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(2,1,1,1,1,1,1,1,1,1,'search','s1',1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'','[0.0026006666666666674,0.0026032777777777786,0.0026058888888888894,0.0026085000000000006,0.002611111111111112,0.0026137222222222226,0.0026163333333333342,0.002618944444444445,0.0026215555555555562]',2.61111111111111179189e-03,2.61111111111111179189e-03,NULL,0.0,0.0,2.35000000000000069944e-02,'',1.0,1.79518599279098057747e+09,X'CCF6DABB6708C9DC1598FC53FDBB4C2E','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(3,1,1,1,2,1,1,1,1,1,'search','s1',1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'','[0.0022410000000000004,0.0022432500000000005,0.0022455,0.00224775,0.0022500000000000003,0.00225225,0.0022545000000000004,0.00225675,0.002259]',2.25000000000000026367e-03,2.25000000000000026367e-03,NULL,0.0,0.0,0.02025,'',1.0,1.79518599279198646546e+09,X'2D796D0DD7DD7E59253F9DAC1D7A6ADF','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(4,1,1,1,3,1,1,1,1,1,'search','s1',1,'{"x":3,"y":0}','2d0f0569552143db',NULL,'','[0.0019366666666666668,0.0019386111111111112,0.0019405555555555556,0.0019425000000000002,0.0019444444444444446,0.0019463888888888888,0.0019483333333333336,0.0019502777777777778,0.0019522222222222224]',1.94444444444444460538e-03,1.94444444444444460538e-03,NULL,0.0,0.0,0.0175,'',1.0,1.79518599279198646546e+09,X'0312BC82D5DC9D30830F051237E56C32','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(5,1,1,1,4,1,1,1,1,1,'search','s1',1,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'','[0.0016876666666666665,0.001689361111111111,0.0016910555555555555,0.00169275,0.0016944444444444444,0.0016961388888888887,0.0016978333333333333,0.0016995277777777775,0.0017012222222222222]',1.69444444444444438334e-03,1.6944444444444441665e-03,NULL,0.0,0.0,1.52499999999999979322e-02,'',1.0,1.79518599279299235346e+09,X'F68688746737E79E38DA45F3C6B8631E','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(6,1,1,1,5,1,1,1,1,1,'search','s1',1,'{"x":5,"y":0}','e53b9014483c32b6',NULL,'','[0.001494,0.0014955,0.001497,0.0014985,0.0015,0.0015014999999999998,0.001503,0.0015044999999999998,0.001506]',0.0015,1.49999999999999981438e-03,NULL,0.0,0.0,1.34999999999999981126e-02,'',1.0,1.79518599279600977892e+09,X'DED04C3F36D807C9ED3409C94CA95BEF','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(7,1,2,2,0,2,2,2,1,1,'search','s2',1,'{"x":0,"y":0}','cc978be5ab093d2b','wrong_answer','it did not work','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1.79518599284698510167e+09,1.79518599284698510167e+09,X'DEE5C000C373AD9E0B1007AC142901D1','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(8,1,2,2,1,2,2,2,1,1,'search','s2',1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'','[0.006501666666666668,0.006508194444444446,0.006514722222222224,0.006521250000000001,0.006527777777777779,0.006534305555555556,0.006540833333333334,0.0065473611111111114,0.00655388888888889]',6.52777777777777904605e-03,6.52777777777777904605e-03,NULL,0.0,0.0,5.87500000000000105471e-02,'',1.0,1.79518599284799098975e+09,X'3A4FFF7E322AF2DAF8BDA9FE65D21A3D','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(9,1,2,2,2,2,2,2,1,1,'search','s2',1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'','[0.0056025,0.005608124999999999,0.00561375,0.005619374999999999,0.005625,0.005630624999999999,0.00563625,0.005641874999999999,0.0056475]',0.005625,0.005625,NULL,0.0,0.0,5.06249999999999963917e-02,'',1.0,1.79518599284799098975e+09,X'D57B0086C046C5FBD8E804AF05DBC7FB','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(10,1,2,2,3,2,2,2,1,1,'search','s2',1,'{"x":3,"y":0}','2d0f0569552143db',NULL,'','[0.004841666666666668,0.004846527777777779,0.0048513888888888895,0.004856250000000001,0.004861111111111112,0.004865972222222223,0.004870833333333335,0.004875694444444445,0.004880555555555556]',4.86111111111111205557e-03,4.8611111111111111882e-03,NULL,0.0,0.0,4.37500000000000041633e-02,'',1.0,1.79518599284799098975e+09,X'AFE091161BCB4ADC6856DDAF976D67C9','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(11,1,2,2,4,2,2,2,1,1,'search','s2',1,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'','[0.004219166666666667,0.004223402777777778,0.004227638888888889,0.004231875,0.0042361111111111115,0.004240347222222222,0.004244583333333334,0.004248819444444444,0.004253055555555556]',4.23611111111111150046e-03,4.23611111111111063309e-03,NULL,0.0,0.0,0.038125,'',1.0,1.7951859928489968777e+09,X'75B443AC2C0377BA6E0A8E55627D0FEF','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(12,1,3,3,0,3,1,1,1,1,'search','s3',1,'{}','44136fa355b3678a',NULL,'','[0.0032314666666666664,0.003234711111111111,0.0032379555555555554,0.0032412,0.0032444444444444443,0.0032476888888888886,0.0032509333333333333,0.003254177777777777,0.0032574222222222222]',3.24444444444444432887e-03,3.24444444444444432887e-03,NULL,0.0,0.0,0.0292,'',1.0,1.79518599288399958611e+09,X'F5E87933629787190BF323C90E50E44F','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(13,1,1,4,0,4,1,1,1,1,'confirm','s4',1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'','[0.0030156666666666665,0.0030186944444444445,0.003021722222222222,0.00302475,0.0030277777777777777,0.0030308055555555552,0.0030338333333333333,0.003036861111111111,0.003039888888888889]',3.02777777777777767215e-03,3.02777777777777723847e-03,NULL,0.0,0.0,2.72499999999999964472e-02,'',1.0,1.79518599291699075702e+09,X'EDA845C670EF253CB129941D87EA6BE7','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(14,1,1,4,1,4,1,1,1,1,'confirm','s4',1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'','[0.0026006666666666674,0.0026032777777777786,0.0026058888888888894,0.0026085000000000006,0.002611111111111112,0.0026137222222222226,0.0026163333333333342,0.002618944444444445,0.0026215555555555562]',2.61111111111111179189e-03,2.61111111111111179189e-03,NULL,0.0,0.0,2.35000000000000069944e-02,'',1.0,1795185992.92202,X'CCD118A008FD9AF5061247E918376412','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(15,1,1,4,2,4,1,1,1,1,'confirm','s4',1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'','[0.0022410000000000004,0.0022432500000000005,0.0022455,0.00224775,0.0022500000000000003,0.00225225,0.0022545000000000004,0.00225675,0.002259]',2.25000000000000026367e-03,2.25000000000000026367e-03,NULL,0.0,0.0,0.02025,'',1.0,1.79518599292298555378e+09,X'BDA1E68AA416EFB7AB5986AF79102CD0','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(16,1,2,5,0,NULL,NULL,NULL,NULL,1,'search','',1,'{"x":0,"y":0}','cc978be5ab093d2b','lost','its workers died','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1700000000.0,1.79518599294499301907e+09,X'FE453B43D84EF387E6F871CDEA458803','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(17,1,2,6,0,NULL,NULL,NULL,NULL,1,'search','',1,'{"x":0,"y":0}','cc978be5ab093d2b','lost','its workers died','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1700000000.0,1.79518599294599890707e+09,X'A668180B09C1837C5373722D0013B9C3','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(18,NULL,5,NULL,NULL,NULL,NULL,3,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":1500,"tile_b":[-1,1,1,1],"tile_rc":[-1,10],"tile_x":[-1,3,24,1],"tile_y":[-1,1,4,8],"unroll_explicit":1}','d8fb8f613e081faa',NULL,'','[0.00024073195825049704]',2.40731958250497041522e-04,2.40731958250497041522e-04,NULL,0.0,0.0,0.0,'',1.59845086871558046343e+09,1.79519597655799102785e+09,X'8056B9FEDBF0A36FCE37EDC316B3B1DC','autotvm',2,NULL,NULL,'{"target":"cuda -model=v100","knobs":[["tile_b","sp"],["tile_y","sp"],["tile_x","sp"],["tile_rc","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"]],"index":5834747,"all_cost":4.41095232963562,"version":0.2,"tvm_version":"0.7.dev1"}');
INSERT INTO "record" VALUES(19,NULL,11,NULL,NULL,NULL,NULL,3,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":512,"tile_f":[-1,2,4,2],"tile_rc":[-1,1],"tile_rx":[-1,3],"tile_ry":[-1,3],"tile_x":[-1,1,13,1],"tile_y":[-1,1,6,3],"unroll_explicit":1}','1d51232a6efba097',NULL,'','[0.0003167102660550459]',3.16710266055045882183e-04,3.16710266055045882183e-04,NULL,0.0,0.0,0.0,'',1.59849690328390121461e+09,1.79519597655799102785e+09,X'494F1A140336436C605F47B7D9E8C3E5','autotvm',2,NULL,NULL,'{"target":"cuda -model=v100","knobs":[["tile_f","sp"],["tile_y","sp"],["tile_x","sp"],["tile_rc","sp"],["tile_ry","sp"],["tile_rx","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"]],"index":458183743,"all_cost":2.395251512527466,"version":0.2,"tvm_version":"0.7.dev1"}');
INSERT INTO "record" VALUES(20,NULL,10,NULL,NULL,NULL,NULL,3,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":128,"tile_b":[-1,1,1,1],"tile_rc":[-1,44],"tile_x":[-1,2,24,1],"tile_y":[-1,2,8,2],"unroll_explicit":1}','9bf46fbe7c4e9cb2',NULL,'','[0.00010371917227272728]',1.03719172272727280098e-04,1.03719172272727280098e-04,NULL,0.0,0.0,0.0,'',1.60016725117546796796e+09,1.79519597655799102785e+09,X'2F895FCCC0E3D24C44AF0BFB70D09B1F','autotvm',2,NULL,NULL,'{"target":"cuda -model=v100","knobs":[["tile_b","sp"],["tile_y","sp"],["tile_x","sp"],["tile_rc","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"]],"index":2283266,"all_cost":4.605141639709473,"version":0.2,"tvm_version":"0.7.dev1"}');
INSERT INTO "record" VALUES(21,NULL,14,NULL,NULL,NULL,NULL,3,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":1500,"tile_f":[-1,1,4,8],"tile_rc":[-1,1],"tile_rx":[-1,1],"tile_ry":[-1,3],"tile_x":[-1,1,27,1],"tile_y":[-1,6,1,1],"unroll_explicit":0}','007e40c97f6f0e6c',NULL,'','[0.0000948539196217494]',9.48539196217494e-05,9.48539196217494e-05,NULL,0.0,0.0,0.0,'',1.6002077325166087151e+09,1.79519597655799102785e+09,X'3F0C35ACADB0D49381E730F3EE880545','autotvm',2,NULL,NULL,'{"target":"cuda -model=v100","knobs":[["tile_f","sp"],["tile_y","sp"],["tile_x","sp"],["tile_rc","sp"],["tile_ry","sp"],["tile_rx","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"]],"index":136259475,"all_cost":2.308394432067871,"version":0.2,"tvm_version":"0.7.dev1"}');
INSERT INTO "record" VALUES(22,NULL,13,NULL,NULL,NULL,NULL,4,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":1500,"tile_f":[256,1,4,1],"tile_x":[1,1,7,1],"tile_y":[1,1,7,1],"unroll_explicit":1}','d29d76d8c1cc423d',NULL,'','[7.3759017449004675e-6]',7.37590174490046754287e-06,7.37590174490046754287e-06,NULL,0.0,0.0,0.0,'',1.53537755738935852048e+09,1.79519597655799102785e+09,X'FB26E821DB2D4FAFFE4FEA23BA2DF6D0','autotvm',5,NULL,NULL,'{"target":"cuda -model=titanx","knobs":[["tile_f","sp"],["tile_y","sp"],["tile_x","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"]],"index":25761,"all_cost":4.439143419265747,"version":0.2,"tvm_version":"0.7.dev0"}');
INSERT INTO "record" VALUES(23,NULL,15,NULL,NULL,NULL,NULL,3,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":32,"tile_k":[-1,5],"tile_x":[-1,2,2],"tile_y":[-1,32,2],"unroll_explicit":1}','04e8b4ba90ae436d',NULL,'','[3.1323694864935406e-6]',3.13236948649354060613e-06,3.13236948649354060613e-06,NULL,0.0,0.0,0.0,'',1.59840274078491473199e+09,1.79519597655799102785e+09,X'3794385D9F0A17FB17BAB820563DB17C','autotvm',2,NULL,NULL,'{"target":"cuda -model=v100","knobs":[["tile_y","sp"],["tile_x","sp"],["tile_k","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"]],"index":50881,"all_cost":1.8492114543914795,"version":0.2,"tvm_version":"0.7.dev1"}');
INSERT INTO "record" VALUES(24,NULL,7,NULL,NULL,NULL,NULL,3,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":64,"fuse_yx":0,"tile_f":[1,1,1,1],"tile_n":[1,1,1,1],"tile_rc":[512,1,1],"tile_x":[16256,1,1,1],"tile_y":[1,1,1,1],"unroll_explicit":0}','eeb1cd80840bbb6f',NULL,'','[0.0012119587660818715]',1.21195876608187150941e-03,1.21195876608187150941e-03,NULL,0.0,0.0,0.0,'',1.57376881514057159424e+09,1.79519597655799102785e+09,X'BF8135FA4D2ED3896465DDC39A278137','autotvm',2,NULL,NULL,'{"target":"cuda -model=v100","knobs":[["tile_n","sp"],["tile_f","sp"],["tile_y","sp"],["tile_x","sp"],["tile_rc","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"],["fuse_yx","ot"]],"index":0,"all_cost":1.7999486923217773,"version":0.2,"tvm_version":"0.7.dev0"}');
INSERT INTO "record" VALUES(25,NULL,4,NULL,NULL,NULL,NULL,3,NULL,NULL,'search','',NULL,'{"auto_unroll_max_step":512,"tile_f":[-1,1,1,1],"tile_n":[-1,1,1,1],"tile_rc":[-1,1,1],"tile_x":[-1,1,64,1],"unroll_explicit":0}','0556849e03cfc804',NULL,'','[0.010846041800000001]',1.08460418000000009819e-02,1.08460418000000009819e-02,NULL,0.0,0.0,0.0,'',1.60112379197615408896e+09,1.79519597655799102785e+09,X'2BA52B0D557F207EA3C2EEFDFEC1FA3D','autotvm',2,NULL,NULL,'{"target":"cuda -model=v100","knobs":[["tile_n","sp"],["tile_f","sp"],["tile_x","sp"],["tile_rc","sp"],["auto_unroll_max_step","ot"],["unroll_explicit","ot"]],"index":1506,"all_cost":1.9288990497589111,"version":0.2,"tvm_version":"0.7.dev1"}');
INSERT INTO "record" VALUES(26,NULL,12,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"tile_ic":[1,3],"tile_oc":[2,32],"tile_ow":[14,8],"unroll_kw":false}','4310a1f89d31dcab',NULL,'','[0.00009593498664366054]',9.59349866436605370687e-05,9.59349866436605370687e-05,NULL,0.0,0.0,0.0,'',1.5399727313523049355e+09,1.79519597655799102785e+09,X'F529D6CC0FD4ECF81ED898E5B1FB70A3','autotvm',3,NULL,NULL,'{"target":"llvm -mcpu=skylake-avx512","knobs":[["tile_ic","sp"],["tile_oc","sp"],["tile_ow","sp"],["unroll_kw","ot"]],"index":193,"all_cost":1.757516860961914,"version":0.2,"tvm_version":"0.7.dev0"}');
INSERT INTO "record" VALUES(27,NULL,9,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"tile_ic":[1,64],"tile_oc":[2,32],"tile_ow":[8,7],"unroll_kw":true}','c2e04fde2fb5036c',NULL,'','[0.00010744781060336864]',1.07447810603368638297e-04,1.07447810603368638297e-04,NULL,0.0,0.0,0.0,'',1.53997367642980194086e+09,1.79519597655799102785e+09,X'194880DAE579C11A621209F4D3663DED','autotvm',3,NULL,NULL,'{"target":"llvm -mcpu=skylake-avx512","knobs":[["tile_ic","sp"],["tile_oc","sp"],["tile_ow","sp"],["unroll_kw","ot"]],"index":188,"all_cost":1.8370168209075928,"version":0.2,"tvm_version":"0.7.dev0"}');
INSERT INTO "record" VALUES(28,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba',NULL,'','[0.00002,0.000025]',2.25e-05,2.25e-05,NULL,0.0,0.0,0.0,'',1600000000.0,1.79519597655799102785e+09,X'0DA36C3C82B0D8B1E8665549F4D51421','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","all_cost":0.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(29,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','instantiation','AutoTVM: instantiation error','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000001.0,1.79519597655799102785e+09,X'426769DAC61346B900E3A728EAE439C4','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":1,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(30,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','compile','AutoTVM: compile error on the host','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000002.0,1.79519597655799102785e+09,X'4B75EA1E89B9806297C4F0254802BCA9','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":2,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(31,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','compile','AutoTVM: compile error on the device','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000003.0,1.79519597655799102785e+09,X'3C759D3E05D2CD35C11F88330FD16BFB','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":3,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(32,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','runtime','AutoTVM: runtime error on the device','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000004.0,1.79519597655799102785e+09,X'1954AB9E3F267BE9CA6982F885C7E497','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":4,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(33,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','wrong_answer','AutoTVM: wrong answer','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000005.0,1.79519597655799102785e+09,X'A7DB6AF600EA081C2AB7AE841EBD9366','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":5,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(34,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','build_timeout','AutoTVM: build timeout','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000006.0,1.79519597655799102785e+09,X'DED1B4E8B3331A1C96D40C5336E91FB8','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":6,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(35,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','run_timeout','AutoTVM: run timeout','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000007.0,1.79519597655799102785e+09,X'020A25A1D6B29079211A8505B63C3BA9','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":7,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(36,NULL,6,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{"auto_unroll":"null","name":"wide","order":[0,2,1],"scale":0.5,"tile_y":[-1,4,2],"vec":"[\"none\",\"unroll\",\"vec\"]"}','d8e58abf2a9a4cba','runtime','AutoTVM: unknown error','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1600000008.0,1.79519597655799102785e+09,X'CC4CC1DA4D643F23792ACB56D82DA44F','autotvm',3,NULL,NULL,'{"target":"llvm -keys=cpu -link-params=0 -mcpu=skylake-avx512","knobs":[["tile_y","sp"],["order","re"],["vec","an"],["auto_unroll","nil"],["scale","ot"],["name","ot"]],"index":7,"code_hash":"a1b2","error_no":8,"all_cost":1.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(37,NULL,8,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'search','',NULL,'{}','44136fa355b3678a',NULL,'','[1e-6]',1.0e-06,1.0e-06,NULL,0.0,0.0,0.0,'',1600000100.25,1.79519597655799102785e+09,X'67B394CCCDF403BF8DFB04B467F4BF55','autotvm',4,NULL,NULL,'{"target":"cuda -keys=cuda,gpu -max_num_threads=1024 -model=unknown -thread_warp_size=32","knobs":[],"index":0,"all_cost":0.5,"version":0.2,"tvm_version":"0.8.0"}');
INSERT INTO "record" VALUES(38,3,1,7,0,5,3,5,1,1,'search','s5',1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'','[0.0030156666666666665,0.0030186944444444445,0.003021722222222222,0.00302475,0.0030277777777777777,0.0030308055555555552,0.0030338333333333333,0.003036861111111111,0.003039888888888889]',3.02777777777777767215e-03,3.02777777777777723847e-03,NULL,0.0,0.0,2.72499999999999964472e-02,'',1.0,1.7953424338919832707e+09,X'760A7AB5442283E4690367F8D7F6834C','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(39,3,1,7,1,5,3,5,1,1,'search','s5',1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'','[0.0026006666666666674,0.0026032777777777786,0.0026058888888888894,0.0026085000000000006,0.002611111111111112,0.0026137222222222226,0.0026163333333333342,0.002618944444444445,0.0026215555555555562]',2.61111111111111179189e-03,2.61111111111111179189e-03,NULL,0.0,0.0,2.35000000000000069944e-02,'',1.0,1.7953424338919832707e+09,X'478FAE28CD9B605C8EC99C9A9773EAC8','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(40,3,1,8,0,6,4,5,1,1,'search','s6',1,'{"x":6,"y":0}','bc2bf182ce2e41f4',NULL,'','[0.0013556666666666667,0.0013570277777777777,0.0013583888888888888,0.00135975,0.0013611111111111111,0.0013624722222222222,0.0013638333333333334,0.0013651944444444443,0.0013665555555555555]',1.36111111111111111535e-03,1.36111111111111089851e-03,NULL,0.0,0.0,1.22499999999999987371e-02,'',1.0,1.79534243394098734858e+09,X'E6B484F46BE07B38FAD8B14502471A9E','plevel',1,NULL,NULL,NULL);
INSERT INTO "record" VALUES(41,3,1,8,1,6,4,5,1,1,'search','s6',1,'{"x":7,"y":0}','81947f2f2a630329',NULL,'','[0.0012726666666666665,0.0012739444444444443,0.001275222222222222,0.0012764999999999999,0.0012777777777777776,0.0012790555555555552,0.0012803333333333332,0.0012816111111111108,0.0012828888888888888]',1.27777777777777763572e-03,1.27777777777777763572e-03,NULL,0.0,0.0,1.14999999999999980709e-02,'',1.0,1.79534243394098734858e+09,X'331E7C6DCA79214B22B2235993B6A21B','plevel',1,NULL,NULL,NULL);
CREATE TABLE run (
	id INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	target_id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	request JSON NOT NULL, 
	message TEXT NOT NULL, 
	complete BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, max_jobs INTEGER, tuner VARCHAR(200), tuner_until DOUBLE, namespace VARCHAR(64) DEFAULT 'default' NOT NULL, 
	CONSTRAINT pk_run PRIMARY KEY (id), 
	CONSTRAINT ck_run_state CHECK (state IN ('running', 'confirming', 'done', 'failed', 'cancelled')), 
	CONSTRAINT fk_run_target_id_target FOREIGN KEY(target_id) REFERENCES target (id)
);
INSERT INTO "run" VALUES(1,'running',1,'796fbdff61354a463b97ff53c39d3e1d','{"workloads":[{"workload":{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]},"weight":1.0,"candidates":[{"implementation":"filter_tiled.cpu","version":"1.a06f3f32","plevel":5,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_plain.cpu","version":"1.a06f3f32","plevel":10,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_vendor.cpu","version":"1.0","plevel":15,"library":"vendor"}]}],"target":{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]},"trials":12,"timeout_s":null,"seed":0,"tuner":"model","implementations":null,"search_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0},"confirm_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":20,"max_repeats":200,"spread":0.01,"budget_s":0.6,"give_up_ratio":null,"build_timeout_s":30.0,"run_timeout_s":30.0},"force":false}','',0,1.79518599272499823574e+09,NULL,NULL,NULL,NULL,'default');
INSERT INTO "run" VALUES(2,'running',1,'5a1853ae38284018640240fc90215a30','{"workloads":[{"workload":{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]},"weight":1.0,"candidates":[{"implementation":"filter_tiled.cpu","version":"1.a06f3f32","plevel":5,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_plain.cpu","version":"1.a06f3f32","plevel":10,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_vendor.cpu","version":"1.0","plevel":15,"library":"vendor"}]}],"target":{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]},"trials":24,"timeout_s":null,"until_gain":null,"seed":77,"tuner":"random","implementations":null,"search_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"confirm_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":20,"max_repeats":200,"spread":0.01,"budget_s":0.6,"give_up_ratio":null,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"force":false,"priority":0,"max_jobs":null,"webhook":null}','',0,1.79534243362499618523e+09,NULL,NULL,NULL,NULL,'default');
INSERT INTO "run" VALUES(3,'running',1,'5a1853ae38284018640240fc90215a30','{"workloads":[{"workload":{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]},"weight":1.0,"candidates":[{"implementation":"filter_tiled.cpu","version":"1.a06f3f32","plevel":5,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_plain.cpu","version":"1.a06f3f32","plevel":10,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_vendor.cpu","version":"1.0","plevel":15,"library":"vendor"}]}],"target":{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]},"trials":24,"timeout_s":null,"until_gain":null,"seed":77,"tuner":"random","implementations":null,"search_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"confirm_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":20,"max_repeats":200,"spread":0.01,"budget_s":0.6,"give_up_ratio":null,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"force":false,"priority":0,"max_jobs":null,"webhook":null}','',0,1.79534243364298057559e+09,NULL,NULL,NULL,NULL,'default');
INSERT INTO "run" VALUES(4,'running',1,'5a1853ae38284018640240fc90215a30','{"workloads":[{"workload":{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]},"weight":1.0,"candidates":[{"implementation":"filter_tiled.cpu","version":"1.a06f3f32","plevel":5,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_plain.cpu","version":"1.a06f3f32","plevel":10,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_vendor.cpu","version":"1.0","plevel":15,"library":"vendor"}]}],"target":{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]},"trials":24,"timeout_s":null,"until_gain":null,"seed":77,"tuner":"random","implementations":null,"search_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"confirm_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":20,"max_repeats":200,"spread":0.01,"budget_s":0.6,"give_up_ratio":null,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"force":true,"priority":0,"max_jobs":null,"webhook":null}','',0,1.79534243365698146814e+09,NULL,NULL,NULL,NULL,'default');
INSERT INTO "run" VALUES(5,'running',1,'5a1853ae38284018640240fc90215a30','{"workloads":[{"workload":{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]},"weight":1.0,"candidates":[{"implementation":"filter_tiled.cpu","version":"1.a06f3f32","plevel":5,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_plain.cpu","version":"1.a06f3f32","plevel":10,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_vendor.cpu","version":"1.0","plevel":15,"library":"vendor"}]}],"target":{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]},"trials":24,"timeout_s":null,"until_gain":null,"seed":77,"tuner":"random","implementations":null,"search_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"confirm_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":20,"max_repeats":200,"spread":0.01,"budget_s":0.6,"give_up_ratio":null,"build_timeout_s":30.0,"run_timeout_s":30.0,"cache_flush":false},"force":true,"priority":0,"max_jobs":null,"webhook":null}','',0,1.79534243366800546652e+09,NULL,NULL,NULL,NULL,'default');
CREATE TABLE run_task (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	weight DOUBLE NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	message TEXT NOT NULL, 
	CONSTRAINT pk_run_task PRIMARY KEY (id), 
	CONSTRAINT ck_run_task_state CHECK (state IN ('active', 'dropped', 'exhausted')), 
	CONSTRAINT fk_run_task_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_run_task_task_id_task FOREIGN KEY(task_id) REFERENCES task (id), 
	CONSTRAINT uq_run_task_run_id_task_id UNIQUE (run_id, task_id)
);
INSERT INTO "run_task" VALUES(1,1,1,1.0,'active','');
INSERT INTO "run_task" VALUES(2,1,2,1.0,'active','');
INSERT INTO "run_task" VALUES(3,1,3,1.0,'active','');
INSERT INTO "run_task" VALUES(4,2,1,1.0,'active','');
INSERT INTO "run_task" VALUES(5,2,2,1.0,'active','');
INSERT INTO "run_task" VALUES(6,2,3,1.0,'active','');
INSERT INTO "run_task" VALUES(7,3,1,1.0,'active','');
INSERT INTO "run_task" VALUES(8,3,2,1.0,'active','');
INSERT INTO "run_task" VALUES(9,3,3,1.0,'active','');
INSERT INTO "run_task" VALUES(10,4,1,1.0,'active','');
INSERT INTO "run_task" VALUES(11,4,2,1.0,'active','');
INSERT INTO "run_task" VALUES(12,4,3,1.0,'active','');
INSERT INTO "run_task" VALUES(13,5,1,1.0,'active','');
INSERT INTO "run_task" VALUES(14,5,2,1.0,'active','');
INSERT INTO "run_task" VALUES(15,5,3,1.0,'active','');
CREATE TABLE target (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	keys JSON NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_target PRIMARY KEY (id), 
	CONSTRAINT uq_target_key UNIQUE ("key")
);
INSERT INTO "target" VALUES(1,'llvm/znver4/threads=2','["cpu"]','{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}');
INSERT INTO "target" VALUES(2,'cuda/generic','["cuda","gpu"]','{"kind":"cuda","keys":["cuda","gpu"],"model":"v100"}');
INSERT INTO "target" VALUES(3,'llvm/skylake-avx512/threads=1','["cpu"]','{"kind":"llvm","num-cores":1,"mcpu":"skylake-avx512","keys":["cpu"]}');
CREATE TABLE target_variant (
	id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	keys JSON NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_target_variant PRIMARY KEY (id), 
	CONSTRAINT fk_target_variant_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT uq_target_variant_digest UNIQUE (digest)
);
INSERT INTO "target_variant" VALUES(1,1,'3a40fb7d618be18a3af96e980fbf01a5','["cpu"]','{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}');
INSERT INTO "target_variant" VALUES(2,2,'64262204f6f1193b51af6231b34308a4','["cuda","gpu"]','{"kind":"cuda","keys":["cuda","gpu"],"model":"v100"}');
INSERT INTO "target_variant" VALUES(3,3,'662b6b539723457c4d6a9daba18ba106','["cpu"]','{"kind":"llvm","num-cores":1,"mcpu":"skylake-avx512","keys":["cpu"]}');
INSERT INTO "target_variant" VALUES(4,2,'8b6014b25f0c5338d948f3bb15006dd8','["cuda","gpu"]','{"kind":"cuda","keys":["cuda","gpu"],"max_threads_per_block":1024,"thread_warp_size":32}');
INSERT INTO "target_variant" VALUES(5,2,'dcf3f525222d3f0545fb01e1e63930cc','["cuda","gpu"]','{"kind":"cuda","keys":["cuda","gpu"],"model":"titanx"}');
CREATE TABLE "task" (
	id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	implementation VARCHAR(200) NOT NULL, 
	version VARCHAR(200) NOT NULL, 
	plevel INTEGER NOT NULL, 
	library VARCHAR(200), 
	condition JSON, 
	space JSON, 
	space_size BIGINT, 
	created_at DOUBLE NOT NULL, 
	space_digest VARCHAR(64) NOT NULL, 
	namespace VARCHAR(64) DEFAULT 'default' NOT NULL, 
	CONSTRAINT pk_task PRIMARY KEY (id), 
	CONSTRAINT fk_task_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT fk_task_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id), 
	CONSTRAINT uq_task_identity UNIQUE (workload_id, target_id, implementation, version, space_digest, namespace)
);
INSERT INTO "task" VALUES(1,1,1,'filter_tiled.cpu','1.a06f3f32',5,NULL,NULL,'{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}',144,1.7951859927309930325e+09,'a06f3f32','default');
INSERT INTO "task" VALUES(2,1,1,'filter_plain.cpu','1.a06f3f32',10,NULL,NULL,'{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}',144,1.7951859927319989205e+09,'a06f3f32','default');
INSERT INTO "task" VALUES(3,1,1,'filter_vendor.cpu','1.0',15,'vendor',NULL,NULL,NULL,1.7951859927319989205e+09,'','default');
INSERT INTO "task" VALUES(4,3,2,'autotvm:conv1d_transpose_nchw.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655400776859e+09,'','default');
INSERT INTO "task" VALUES(5,9,2,'autotvm:conv2d_nchw_winograd.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655501365659e+09,'','default');
INSERT INTO "task" VALUES(6,11,3,'autotvm:dense_pack.x86','1.0',10,NULL,NULL,NULL,NULL,1.79519597655501365659e+09,'','default');
INSERT INTO "task" VALUES(7,5,2,'autotvm:conv2d_transpose_nchw.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655501365659e+09,'','default');
INSERT INTO "task" VALUES(8,2,2,'autotvm:concatenate.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655501365659e+09,'','default');
INSERT INTO "task" VALUES(9,4,3,'autotvm:conv2d_NCHWc.x86','1.0',10,NULL,NULL,NULL,NULL,1.79519597655601954467e+09,'','default');
INSERT INTO "task" VALUES(10,10,2,'autotvm:conv2d_nchw_winograd.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655601954467e+09,'','default');
INSERT INTO "task" VALUES(11,9,2,'autotvm:conv2d_nchw.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655601954467e+09,'','default');
INSERT INTO "task" VALUES(12,8,3,'autotvm:conv2d_NCHWc.x86','1.0',10,NULL,NULL,NULL,NULL,1.79519597655601954467e+09,'','default');
INSERT INTO "task" VALUES(13,7,2,'autotvm:depthwise_conv2d_nchw.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655698513989e+09,'','default');
INSERT INTO "task" VALUES(14,10,2,'autotvm:conv2d_nchw.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655698513989e+09,'','default');
INSERT INTO "task" VALUES(15,6,2,'autotvm:batch_matmul.cuda','1.0',10,NULL,NULL,NULL,NULL,1.79519597655799102785e+09,'','default');
CREATE TABLE timing_policy (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_timing_policy PRIMARY KEY (id), 
	CONSTRAINT uq_timing_policy_digest UNIQUE (digest)
);
INSERT INTO "timing_policy" VALUES(1,'48198945c9e28feee7c52bda9a35f36d','{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0}');
CREATE TABLE token (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	scopes JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, namespace VARCHAR(64), 
	CONSTRAINT pk_token PRIMARY KEY (id), 
	CONSTRAINT uq_token_digest UNIQUE (digest)
);
INSERT INTO "token" VALUES(1,'lab','aa','["worker"]',1795000000.0,NULL,NULL,NULL);
INSERT INTO "token" VALUES(2,'lab-7','d2c2dcf1b9be58c1d3b5731d2b6e80d86280b1ca12add473e48eaca84257f080','["worker"]',1.79534243367098283765e+09,NULL,NULL,NULL);
CREATE TABLE tombstone (
	record_id INTEGER NOT NULL, 
	purge_id INTEGER NOT NULL, 
	CONSTRAINT pk_tombstone PRIMARY KEY (record_id), 
	CONSTRAINT fk_tombstone_purge_id_purge FOREIGN KEY(purge_id) REFERENCES purge (id), 
	CONSTRAINT fk_tombstone_record_id_record FOREIGN KEY(record_id) REFERENCES record (id)
);
INSERT INTO "tombstone" VALUES(22,1);
CREATE TABLE webhook (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	url VARCHAR(1000) NOT NULL, 
	attempts INTEGER NOT NULL, 
	due_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	error TEXT NOT NULL, 
	CONSTRAINT pk_webhook PRIMARY KEY (id), 
	CONSTRAINT fk_webhook_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT uq_webhook_run_id_url UNIQUE (run_id, url)
);
CREATE TABLE "worker" (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	host TEXT NOT NULL, 
	pid BIGINT NOT NULL, 
	version TEXT NOT NULL, 
	operators JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	token_id INTEGER, 
	CONSTRAINT pk_worker PRIMARY KEY (id), 
	CONSTRAINT fk_worker_token_id_token FOREIGN KEY(token_id) REFERENCES token (id)
);
INSERT INTO "worker" VALUES(1,'worker','host-a',1,'','{}',1.79518599275098896025e+09,1.79518599291598510746e+09,NULL,NULL);
INSERT INTO "worker" VALUES(2,'second','host-a',1,'','{}',1.79518599275601816169e+09,1.79518599284601950644e+09,NULL,NULL);
INSERT INTO "worker" VALUES(3,'worker','host-a',1,'','{}',1.79534243372598147393e+09,1.79534243372598147393e+09,NULL,2);
INSERT INTO "worker" VALUES(4,'worker','host-a',1,'','{}',1.79534243391298508644e+09,1.79534243391298508644e+09,NULL,2);
CREATE TABLE worker_device (
	worker_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	CONSTRAINT pk_worker_device PRIMARY KEY (worker_id, device_id), 
	CONSTRAINT fk_worker_device_device_id_device FOREIGN KEY(device_id) REFERENCES device (id), 
	CONSTRAINT fk_worker_device_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT fk_worker_device_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id)
);
INSERT INTO "worker_device" VALUES(1,1,1);
INSERT INTO "worker_device" VALUES(2,2,1);
INSERT INTO "worker_device" VALUES(3,5,1);
INSERT INTO "worker_device" VALUES(4,5,1);
CREATE TABLE workload (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	"key" TEXT NOT NULL, 
	op VARCHAR(128) NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_workload PRIMARY KEY (id), 
	CONSTRAINT uq_workload_digest UNIQUE (digest)
);
INSERT INTO "workload" VALUES(1,'b2998bdec3409e39','filter(data=float32[64,64])','filter','{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]}');
INSERT INTO "workload" VALUES(2,'572ebb46902f0737','autotvm.concatenate(arg0.0=int8[1,8],arg0.1=int8[1,8]){"arg0":[{"input":"arg0.0"},{"input":"arg0.1"}],"arg1":1,"kwargs":{"axis":1}}','autotvm.concatenate','{"op":"autotvm.concatenate","inputs":[{"name":"arg0.0","type":"int8[1,8]"},{"name":"arg0.1","type":"int8[1,8]"}],"attrs":{"arg0":[{"input":"arg0.0"},{"input":"arg0.1"}],"arg1":1,"kwargs":{"axis":1}}}');
INSERT INTO "workload" VALUES(3,'5a0efd09c11cdbd3','autotvm.conv1d_transpose_nchw(data=float32[1,257,128],weight=float32[257,1,512]){"out_dtype":"float32","output_padding":[0],"padding":[256],"strides":[128]}','autotvm.conv1d_transpose_nchw','{"op":"autotvm.conv1d_transpose_nchw","inputs":[{"name":"data","type":"float32[1,257,128]"},{"name":"weight","type":"float32[257,1,512]"}],"attrs":{"strides":[128],"padding":[256],"out_dtype":"float32","output_padding":[0]}}');
INSERT INTO "workload" VALUES(4,'60a654f6adb1faa2','autotvm.conv2d_NCHWc(data=float32[1,64,56,56],weight=float32[64,64,3,3]){"dilation":[1,1],"layout":"NCHW","out_dtype":"float32","out_layout":"NCHW","padding":[1,1,1,1],"strides":[1,1]}','autotvm.conv2d_NCHWc','{"op":"autotvm.conv2d_NCHWc","inputs":[{"name":"data","type":"float32[1,64,56,56]"},{"name":"weight","type":"float32[64,64,3,3]"}],"attrs":{"strides":[1,1],"padding":[1,1,1,1],"dilation":[1,1],"layout":"NCHW","out_layout":"NCHW","out_dtype":"float32"}}');
INSERT INTO "workload" VALUES(5,'77298413daaebe6b','autotvm.conv2d_transpose_nchw(data=float32[1,512,1,128]){"out_dtype":"float32","padding":[0,256,0,256],"strides":[1,128],"weight":["TENSOR",[512,1,1,512],"float32",[0,0]]}','autotvm.conv2d_transpose_nchw','{"op":"autotvm.conv2d_transpose_nchw","inputs":[{"name":"data","type":"float32[1,512,1,128]"}],"attrs":{"weight":["TENSOR",[512,1,1,512],"float32",[0,0]],"strides":[1,128],"padding":[0,256,0,256],"out_dtype":"float32"}}');
INSERT INTO "workload" VALUES(6,'ac6681cc4a7932e9','autotvm.batch_matmul(a=float32[1,128,20],b=float32[1,128,20])','autotvm.batch_matmul','{"op":"autotvm.batch_matmul","inputs":[{"name":"a","type":"float32[1,128,20]"},{"name":"b","type":"float32[1,128,20]"}]}');
INSERT INTO "workload" VALUES(7,'b871f7490ef2eae3','autotvm.depthwise_conv2d_nchw(data=float32[1,1024,7,7],weight=float32[1024,1,3,3]){"dilation":[1,1],"out_dtype":"float32","padding":[1,1,1,1],"strides":[1,1]}','autotvm.depthwise_conv2d_nchw','{"op":"autotvm.depthwise_conv2d_nchw","inputs":[{"name":"data","type":"float32[1,1024,7,7]"},{"name":"weight","type":"float32[1024,1,3,3]"}],"attrs":{"strides":[1,1],"padding":[1,1,1,1],"dilation":[1,1],"out_dtype":"float32"}}');
INSERT INTO "workload" VALUES(8,'b8b20812c37fbd9b','autotvm.conv2d_NCHWc(data=float32[1,3,224,224],weight=float32[64,3,7,7]){"dilation":[1,1],"layout":"NCHW","out_dtype":"float32","out_layout":"NCHW","padding":[3,3,3,3],"strides":[2,2]}','autotvm.conv2d_NCHWc','{"op":"autotvm.conv2d_NCHWc","inputs":[{"name":"data","type":"float32[1,3,224,224]"},{"name":"weight","type":"float32[64,3,7,7]"}],"attrs":{"strides":[2,2],"padding":[3,3,3,3],"dilation":[1,1],"layout":"NCHW","out_layout":"NCHW","out_dtype":"float32"}}');
INSERT INTO "workload" VALUES(9,'b9d15fe1aa891670','autotvm.conv2d_nchw(data=float32[1,160,288,128],weight=float32[32,160,3,3]){"dilation":[1,1],"out_dtype":"float32","padding":[1,2,1,2],"strides":[1,1]}','autotvm.conv2d_nchw','{"op":"autotvm.conv2d_nchw","inputs":[{"name":"data","type":"float32[1,160,288,128]"},{"name":"weight","type":"float32[32,160,3,3]"}],"attrs":{"strides":[1,1],"padding":[1,2,1,2],"dilation":[1,1],"out_dtype":"float32"}}');
INSERT INTO "workload" VALUES(10,'c52bd52ac2bc7b5d','autotvm.conv2d_nchw(data=float32[1,44,288,133],weight=float32[32,44,3,3]){"dilation":[1,1],"out_dtype":"float32","padding":[1,2,1,2],"strides":[1,1]}','autotvm.conv2d_nchw','{"op":"autotvm.conv2d_nchw","inputs":[{"name":"data","type":"float32[1,44,288,133]"},{"name":"weight","type":"float32[32,44,3,3]"}],"attrs":{"strides":[1,1],"padding":[1,2,1,2],"dilation":[1,1],"out_dtype":"float32"}}');
INSERT INTO "workload" VALUES(11,'eda526cb447bf579','autotvm.dense(data=float32[16,64],weight=float32[32,64]){"bias":null,"out_dtype":"float32"}','autotvm.dense','{"op":"autotvm.dense","inputs":[{"name":"data","type":"float32[16,64]"},{"name":"weight","type":"float32[32,64]"}],"attrs":{"bias":null,"out_dtype":"float32"}}');
CREATE INDEX ix_workload_op ON workload (op);
CREATE INDEX ix_run_digest ON run (digest);
CREATE INDEX ix_run_state ON run (state);
CREATE INDEX ix_job_run_id_state ON job (run_id, state);
CREATE INDEX ix_run_task_task_id ON run_task (task_id);
CREATE INDEX ix_worker_device_device_id ON worker_device (device_id);
CREATE INDEX ix_worker_device_target_id ON worker_device (target_id);
CREATE INDEX ix_event_job_id ON event (job_id);
CREATE INDEX ix_event_run_id_id ON event (run_id, id);
CREATE INDEX ix_job_entry_task_id ON job_entry (task_id);
CREATE INDEX ix_lease_job_id ON lease (job_id);
CREATE INDEX ix_lease_live_expires_at ON lease (expires_at) WHERE ended_at IS NULL;
CREATE INDEX ix_lease_worker_id ON lease (worker_id);
CREATE UNIQUE INDEX uq_lease_live_job ON lease (job_id) WHERE ended_at IS NULL;
CREATE INDEX ix_record_task_id_phase_config_digest ON record (task_id, phase, config_digest);
CREATE INDEX ix_record_run_id_id ON record (run_id, id);
CREATE INDEX ix_job_queued ON job (target_id, priority, turn, id) WHERE state = 'queued';
CREATE UNIQUE INDEX uq_lease_live_timing ON lease (device_id) WHERE ended_at IS NULL AND timing;
CREATE INDEX ix_lease_live_device ON lease (device_id) WHERE ended_at IS NULL;
CREATE INDEX ix_run_namespace_id ON run (namespace, id);
CREATE INDEX ix_webhook_open ON webhook (due_at) WHERE ended_at IS NULL;
COMMIT;
